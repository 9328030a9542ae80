"""Lines of JSON that are signed with a key, each together with all lines before it."""

from __future__ import annotations

import hashlib
import hmac

_FIELD = ', "signature": "'
_END = '"}'
_DIGITS = 32
_PURPOSE = b"unsent\n"  # the same key signs command lines


class Chain:
    """Signs or checks the lines of one file, in order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._last = b""

    def sign(self, line: str) -> str:
        """Returns a line, which is a JSON object, with the signature as its last field."""
        return f"{line[:-1]}{_FIELD}{self._next(line)}{_END}"

    def check(self, line: str) -> str | None:
        """Returns a signed line as it was before; None if the signature is not right."""
        text, given = _split(line)
        is_right = hmac.compare_digest(self._next(text).encode(), given.encode())
        return text if is_right else None

    def _next(self, line: str) -> str:
        digest = hmac.new(self._key, _PURPOSE + self._last + line.encode(), hashlib.sha256).hexdigest()[:_DIGITS]
        self._last = digest.encode()
        return digest


def is_signed(line: str) -> bool:
    """Returns whether a line has a signature, right or not."""
    return bool(_split(line)[1])


def _split(line: str) -> tuple[str, str]:
    start = len(line) - len(_END) - _DIGITS - len(_FIELD)
    if start < 0 or not line.endswith(_END) or line[start : start + len(_FIELD)] != _FIELD:
        return line, ""
    return f"{line[:start]}}}", line[start + len(_FIELD) : -len(_END)]
