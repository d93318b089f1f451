"""A Merkle tree over named contents, so that one short value stands for every byte of a snapshot.

The shape is that of Certificate Transparency (RFC 6962, section 2.1), with names in the leaves:

- a leaf is SHA-256(0x00 ‖ sha256 of the content as 32 bytes ‖ size as 8 bytes, big-endian ‖ path in UTF-8);
- an inner node is SHA-256(0x01 ‖ left ‖ right);
- leaves are in the order of their paths' UTF-8 bytes; level by level, neighbours are joined in pairs and an odd last
  one goes up as it is.

Leaf and inner node begin with different bytes, so neither can pass for the other; a path is in its leaf, so contents
cannot change places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

__all__ = ["merkle_root"]


def merkle_root(leaves: Iterable[tuple[str, str, int]]) -> str:
    """The root over (path, sha256 in hex, size), in hex. There must be at least one leaf."""
    sha256 = hashlib.sha256
    level = [
        sha256(b"\x00" + bytes.fromhex(digest) + size.to_bytes(8, "big") + path).digest()
        for path, digest, size in sorted((path.encode(), digest, size) for path, digest, size in leaves)
    ]
    while len(level) > 1:
        pairs = [sha256(b"\x01" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0].hex()
