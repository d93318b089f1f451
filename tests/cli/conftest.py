"""`strobe(*args)`: the command line as a user types it, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from strobe.cli.main import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Strobe: TypeAlias = Callable[..., Done]


@pytest.fixture
def strobe(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Strobe:
    """Runs in an empty directory; file names in tests are relative to it."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(args)
        captured = capsys.readouterr()
        code = stopped.value.code
        assert isinstance(code, int)
        return Done(code, captured.out, captured.err)

    return run
