"""Whether a recorded command line is one that was typed in this project: a signature with a key of the project's own.

Anyone can write a run.json, and copy or link a folder into ours. Only who can read the key can sign one; it lies in
the project's outputs and not among checkpoints, so that a folder of these never brings one along.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

from runner.host import key
from runner.host.paths import outputs_dir

FIELD = "signature"  # of a record


def sign(name: str, arguments: Sequence[str]) -> str:
    """Returns the signature of a command line; empty where no key can be read or made.

    Args:
      name: of the run or sweep.
      arguments: as they are recorded.
    """
    folder = outputs_dir()
    if not key.read(folder):
        key.make(folder)
    read = key.read(folder)
    return _signed(read, name, arguments) if read else ""


def is_own(name: str, record: Mapping[str, Any]) -> bool:
    """Returns whether a record's overrides were signed in this project.

    Args:
      name: of the run or sweep.
      record: has the overrides and their signature.
    """
    read = key.read(outputs_dir())
    given = str(record.get(FIELD, ""))
    return bool(read) and hmac.compare_digest(_signed(read, name, record.get("overrides")).encode(), given.encode())


def _signed(secret: bytes, name: str, arguments: object) -> str:
    return hmac.new(secret, json.dumps([name, arguments]).encode(), hashlib.sha256).hexdigest()
