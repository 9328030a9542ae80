"""Runs `runner.data.sources.tfds.decode` in a process of its own and brings its messages back."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO

from runner.data.sources.tfds.cache import Request
from runner.data.tell import tell
from runner.errors import ConfigError, DataError

_ROOT = Path(__file__).resolve().parents[4]
# Appended, so that nothing beside the package can hide a module of the standard library.
_START = (
    "import sys; sys.path.append(sys.argv[1]); from runner.data.sources.tfds.worker import main; main(sys.argv[2])"
)


def decode(root: Path, wanted: Request, *, download: bool, mirror: bool, say: Callable[[str], None] = tell) -> None:
    """Fetches, prepares and decodes a dataset into the cache, in a child process.

    The child writes one JSON object a line to its stdout; whatever libraries print goes to a temporary log. It ends
    when its stdin does, so it does not outlive this process.

    Args:
      root: the data_dir.
      wanted: what to decode.
      download: whether anything may be fetched.
      mirror: whether the package indexes may stand in for TFDS's hosts.
      say: told the progress, line by line.

    Raises:
      ConfigError: the child refused a config value.
      DataError: the data could not be had.
    """
    paths = [path or str(Path.cwd()) for path in sys.path] if wanted.code else []
    job = {"root": str(root), "wanted": asdict(wanted), "download": download, "mirror": mirror, "paths": paths}
    command = [sys.executable, "-P", "-c", _START, str(_ROOT), json.dumps(job)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
        )
        with child:
            try:
                assert child.stdout is not None
                done = _listen(child.stdout, say)
            except BaseException:
                child.kill()
                raise
            with contextlib.suppress(OSError):
                child.communicate()
        if not done:
            raise DataError(f"preparing {wanted.name} ended with exit code {child.returncode}: {_last_line(log)}")


def _listen(lines: IO[str], say: Callable[[str], None]) -> bool:
    for line in lines:
        message = json.loads(line)
        match message["kind"]:
            case "say":
                say(message["text"])
            case "refused":
                raise ConfigError(message["text"])
            case "failed":
                raise DataError(message["text"])
            case "done":
                return True
    return False


def _last_line(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - 4096))
    lines = log.read().decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "it said nothing")
