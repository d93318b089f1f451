"""A JSON object that is read field by field, strictly: what is wrong is said with the path of the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from strobe.model.cut import Json
from strobe.model.errors import StrobeError
from strobe.model.strict_json import NotJson, check_value
from strobe.model.text import shortened

__all__ = ["Fault", "Fields", "short"]

T = TypeVar("T")


class Fault(Exception):
    """What is wrong with which field; becomes a `Damaged` where the manifest's name is known."""


def short(value: Json) -> str:
    return shortened(repr(value), 60)


class Fields:
    """A JSON object that is read field by field and knows the path that leads to it."""

    def __init__(self, path: str, value: Json) -> None:
        if not isinstance(value, dict):
            raise Fault(f"{path}: {short(value)} is not an object")
        self.path = path
        self.value: dict[str, Json] = value

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> Json:
        try:
            return self.value[name]
        except KeyError:
            raise Fault(f"{self.at(name)}: the field is missing") from None

    def free(self, name: str) -> Json:
        """A value of any shape, which only its owner understands."""
        return self._free(name, self.get(name))

    def _free(self, name: str, value: Json) -> Json:
        try:
            return check_value(value, self.at(name))
        except NotJson as error:
            raise Fault(str(error)) from None

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise Fault(f"{self.at(name)}: {short(value)} is not text")
        return value

    def text_or_null(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def whole(self, name: str) -> int:
        value = self.get(name)
        if value.__class__ is not int:
            raise Fault(f"{self.at(name)}: {short(value)} is not a whole number")
        return int(value)

    def whole_or_null(self, name: str) -> int | None:
        return None if self.get(name) is None else self.whole(name)

    def number(self, name: str) -> float:
        value = self.get(name)
        if value.__class__ not in (int, float):
            raise Fault(f"{self.at(name)}: {short(value)} is not a number")
        return float(value) if isinstance(value, float) else int(value)

    def each(self, name: str, read: Callable[[str, Json], T]) -> dict[str, T]:
        fields = Fields(self.at(name), self.get(name))
        return {key: read(fields.at(key), value) for key, value in fields.value.items()}

    def rest(self, known: frozenset[str]) -> dict[str, Json]:
        return {name: self._free(name, value) for name, value in self.value.items() if name not in known}

    def only(self, *known: str) -> Fields:
        for name in self.value:
            if name not in known:
                raise Fault(f"{self.at(name)}: there is no such field")
        return self

    def make(self, build: Callable[[], T]) -> T:
        """`build()`, which checks what it makes, with the field's path in front of what it says."""
        try:
            return build()
        except StrobeError as error:
            raise Fault(self.at(error.what.rstrip("."))) from None
