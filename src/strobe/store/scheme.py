"""Whether a place is a bucket: asked by everyone who is told where something is, most of whom never see a bucket."""

from __future__ import annotations

from typing import Final

__all__ = ["SCHEME", "is_s3"]

SCHEME: Final = "s3://"


def is_s3(name: str) -> bool:
    return name.startswith(SCHEME)
