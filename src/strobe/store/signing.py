"""Who wrote a snapshot: an Ed25519 signature over its Merkle root, beside its manifest.

Theory
------
The root stands for every byte of a snapshot, and anybody can compute it. A signature over it can be made only with the
private key of the job, and checked by whoever has the public one. It is put before the manifest, so a complete snapshot
of a job that signs has its signature; and it is a file of its own, so that a reader that knows nothing of signatures
reads the snapshot as before.

A key is a PEM file, or the PEM text itself in an environment variable (`env:NAME`):

    openssl genpkey -algorithm ed25519 -out strobe.pem
    openssl pkey -in strobe.pem -pubout -out strobe.pub
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from strobe.model.errors import Damaged, Misuse
from strobe.model.strict_json import parse
from strobe.store.base import Absent, ObjectStore

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["SIGNED_BY", "Sign", "check_signature", "public_key", "signer", "wanted_signer"]

Sign: TypeAlias = Callable[[str], bytes]  # from a root to the content of the signature's file

SIGNED_BY: Final = "STROBE_SIGNED_BY"  # the public key that every snapshot must be signed by that is restored
_ENVIRONMENT: Final = "env:"
_MESSAGE: Final = b"strobe snapshot root "  # a signature of something else with the same key is none of a snapshot
_LARGEST: Final = 1 << 14


def signer(key: str) -> Sign:
    """Signs with the private key that `key` names: a PEM file, or env:NAME."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(_text(key), password=None)
    except (ValueError, TypeError) as error:
        raise _no_key(key, "private", str(error)) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise _no_key(key, "private", "it is of another kind")
    return lambda root: _signature(private, root)


def public_key(key: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        public = load_pem_public_key(_text(key))
    except (ValueError, TypeError) as error:
        raise _no_key(key, "public", str(error)) from None
    if not isinstance(public, Ed25519PublicKey):
        raise _no_key(key, "public", "it is of another kind")
    return public


def wanted_signer(named: str | None) -> str | None:
    """The public key that a snapshot must be signed by to be restored: the one that somebody names, or the
    environment's; None if any snapshot will do."""
    return named or os.environ.get(SIGNED_BY) or None


def check_signature(objects: ObjectStore, key: str, root: str, where: str, signed_by: str) -> None:
    """Damaged unless the signature at `key` is one of this root by the key that `signed_by` names."""
    from cryptography.exceptions import InvalidSignature

    public = public_key(signed_by)
    try:
        if (objects.size(key) or 0) > _LARGEST:
            raise ValueError("it is too large")
        value = parse(objects.get(key))
        signature = base64.b64decode(value["signature"], validate=True)
        if value["algorithm"] != "ed25519":
            raise ValueError(f"of another kind: {value['algorithm']!r:.40}")
    except Absent:
        raise _refused(where, "it is not signed", signed_by) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _refused(where, f"its signature cannot be read ({error})", signed_by) from None
    try:
        public.verify(signature, _MESSAGE + root.encode())
    except InvalidSignature:
        raise _refused(where, f"its signature is not by {signed_by}, or not of this content", signed_by) from None


def _signature(private: Ed25519PrivateKey, root: str) -> bytes:
    signature = base64.b64encode(private.sign(_MESSAGE + root.encode())).decode()
    return f'{{"algorithm":"ed25519","root":"{root}","signature":"{signature}"}}\n'.encode()


def _text(key: str) -> bytes:
    if key.startswith(_ENVIRONMENT):
        name = key.removeprefix(_ENVIRONMENT)
        if name not in os.environ:
            raise Misuse(f"The environment variable {name}, which should hold a key, is not set.", next="Set it.")
        return os.environ[name].encode()
    try:
        with Path(key).open("rb") as file:
            return file.read(_LARGEST)
    except (OSError, ValueError) as error:  # a zero in the path is a ValueError
        why = error.strerror if isinstance(error, OSError) else None
        raise Misuse(
            f"The key {key} cannot be read: {why or error}.",
            untouched="Nothing was started.",
            next="Name a PEM file, or a variable that holds one: env:NAME.",
        ) from None


def _no_key(key: str, kind: str, why: str) -> Misuse:
    return Misuse(
        f"{key} is not a {kind} key for Ed25519: {why.rstrip('.')}.",
        untouched="Nothing was started.",
        next="Make one: openssl genpkey -algorithm ed25519 -out strobe.pem; the public one: openssl pkey -in "
        "strobe.pem -pubout -out strobe.pub",
    )


def _refused(where: str, why: str, signed_by: str) -> Damaged:
    return Damaged(
        f"{where} is refused: {why}.",
        untouched="Nothing was changed.",
        next=f"Only snapshots that are signed by {signed_by} are taken: find out where this one comes from.",
    )
