"""Whether a recorded command line is one that was typed in this project: a signature with a key of the project's own.

Anyone can write a run.json, and copy or link a folder into ours. Only who can read the key can sign one; it lies in
the project's outputs and not among checkpoints, so that a folder of these never brings one along.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from runner.host.paths import outputs_dir

FIELD = "signature"  # of a record
_KEY = ".key"


def sign(name: str, arguments: Sequence[str]) -> str:
    """Returns the signature of a command line; empty where no key can be read or made.

    Args:
      name: of the run or sweep.
      arguments: as they are recorded.
    """
    key = _read() or _make()
    return _signed(key, name, arguments) if key else ""


def is_own(name: str, record: Mapping[str, Any]) -> bool:
    """Returns whether a record's overrides were signed in this project.

    Args:
      name: of the run or sweep.
      record: has the overrides and their signature.
    """
    key = _read()
    given = str(record.get(FIELD, ""))
    return bool(key) and hmac.compare_digest(_signed(key, name, record.get("overrides")).encode(), given.encode())


def _signed(key: bytes, name: str, arguments: object) -> str:
    return hmac.new(key, json.dumps([name, arguments]).encode(), hashlib.sha256).hexdigest()


def _read() -> bytes:
    try:
        return (outputs_dir() / _KEY).read_bytes()
    except OSError:
        return b""


def _make() -> bytes:
    """Makes the key, all at once: another process may be doing the same."""
    folder = outputs_dir()
    part = folder / f"{_KEY}-{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_hex(32).encode())
            with contextlib.suppress(FileExistsError):
                os.link(part, folder / _KEY)
        finally:
            part.unlink(missing_ok=True)
    return _read()
