"""Passwords taken out of text that people and programs get to see.

Errors of databases, brokers and Spark quote what they were given: a connection string, a setting. Every error of
Strobe's passes through here, and every line that it logs. What is taken out is what is written as a password: the part
of an address before `@`, and the value of a name that says so (`password=…`, `"secret_key": "…"`). A secret without its
name cannot be told from other words.

>>> redact("could not connect to jdbc:postgresql://ann:s3cret@db/x?password=s3cret&ssl=on")
'could not connect to jdbc:postgresql://ann:***@db/x?password=***&ssl=on'
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["redact"]

# From the word that tells on: what stands before it stays as it is, and to look for it at each place would make the
# time grow with the square of the length. A text may be as long as somebody else likes.
_NAME: Final = r"(?:passw(?:or)?d|passphrase|secret|token|credential|api[._-]?key|access[._-]?key)[\w.\-]{0,100}"
_QUOTED: Final = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_IN_ADDRESS: Final = re.compile(r"(://[^\s/:@'\"]*):[^\s/]+@")
_SETTING: Final = re.compile(rf"(?i)({_NAME})=(?:{_QUOTED}|[^\s&;,)'\"]+)")
_IN_JSON: Final = re.compile(rf"(?i)({_NAME}['\"]\s{{0,100}}:\s{{0,100}})(?:{_QUOTED})")


def redact(text: str) -> str:
    text = _IN_ADDRESS.sub(r"\1:***@", text)
    text = _SETTING.sub(r"\1=***", text)
    return _IN_JSON.sub(r"\1'***'", text)
