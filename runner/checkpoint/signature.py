"""Whether a recorded command line is one that was typed here: a signature with a key that lies beside the checkpoints.

Anyone can write a run.json, and copy or link a folder into ours. Only who can read the key can sign one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FIELD = "signature"  # of a record
_KEY = ".key"


def sign(folder: Path, name: str, arguments: Sequence[str]) -> str:
    """Returns the signature of a command line; empty where no key can be read or made.

    Args:
      folder: where runs keep their checkpoints, and the key.
      name: of the run or sweep.
      arguments: as they are recorded.
    """
    key = _read(folder) or _make(folder)
    return _signed(key, name, arguments) if key else ""


def is_own(folders: Sequence[Path], record: Mapping[str, Any]) -> bool:
    """Returns whether a record's overrides were signed with the key of one of the folders.

    Args:
      folders: this project's own.
      record: a run's.
    """
    keys = [key for folder in folders if (key := _read(folder))]
    wanted = str(record.get(FIELD, ""))
    given = (str(record.get("run", "")), record.get("overrides"))
    return any(hmac.compare_digest(_signed(key, *given).encode(), wanted.encode()) for key in keys)


def _signed(key: bytes, name: str, arguments: object) -> str:
    return hmac.new(key, json.dumps([name, arguments]).encode(), hashlib.sha256).hexdigest()


def _read(folder: Path) -> bytes:
    try:
        return (folder / _KEY).read_bytes()
    except OSError:
        return b""


def _make(folder: Path) -> bytes:
    """Makes the key, all at once: another process may be doing the same."""
    part = folder / f"{_KEY}-{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, secrets.token_hex(32).encode())
            finally:
                os.close(descriptor)
            try:
                os.link(part, folder / _KEY)
            finally:
                part.unlink()
    return _read(folder)
