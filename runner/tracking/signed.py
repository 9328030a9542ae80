"""Lines of JSON that are signed with a key, each with all lines before it."""

from __future__ import annotations

import hashlib
import hmac

# A signature is the last field of a line: `{..., "signature": "0123..."}`.
_FIELD = ', "signature": "'
_END = '"}'
# Hexadecimal digits of a signature: 128 bits of HMAC-SHA256.
_DIGITS = 32
# Part of what is signed. The same key signs recorded command lines, which can't be passed off as records so.
_PURPOSE = b"unsent\n"


class Chain:
    """Signs or checks the lines of one file, in order.

    Each signature covers the one before it, so lines can be neither removed, exchanged nor inserted. Lines at the end
    can be cut off.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._previous = b""

    def sign(self, line: str) -> str:
        """Returns a line, which is a JSON object, with the signature as its last field."""
        return f"{line[:-1]}{_FIELD}{self._signature(line)}{_END}"

    def check(self, line: str) -> str | None:
        """Returns a signed line without its signature; None if the signature is wrong."""
        text, signature = _split(line)
        is_valid = hmac.compare_digest(self._signature(text).encode(), signature.encode())
        if not is_valid:
            return None
        return text

    def _signature(self, line: str) -> str:
        message = _PURPOSE + self._previous + line.encode()
        signature = hmac.new(self._key, message, hashlib.sha256).hexdigest()[:_DIGITS]
        self._previous = signature.encode()
        return signature


def is_signed(line: str) -> bool:
    """Returns whether a line has a signature, valid or not."""
    return bool(_split(line)[1])


def _split(line: str) -> tuple[str, str]:
    """Returns a line without its signature, and the signature; empty if it has none."""
    start = len(line) - len(_END) - _DIGITS - len(_FIELD)
    has_signature = start >= 0 and line.endswith(_END) and line[start : start + len(_FIELD)] == _FIELD
    if not has_signature:
        return line, ""
    return f"{line[:start]}}}", line[start + len(_FIELD) : -len(_END)]
