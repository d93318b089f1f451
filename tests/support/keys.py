"""Keys that snapshots are signed with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["key_pair"]


def key_pair(where: Path, name: str) -> tuple[str, str]:
    """The files of a private and a public key, made as the documentation says."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    private, public = where / f"{name}.pem", where / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return str(private), str(public)
