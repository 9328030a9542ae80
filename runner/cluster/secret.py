"""The secret of a run's processes, which each must prove to know: the launcher's, a variable, or a file in the home.

It is never sent, printed or recorded.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from runner.cluster.place import Place
from runner.errors import ConfigError, invalid

VARIABLE = "RUNNER_CLUSTER_SECRET"
# Bytes. 16 random ones can't be guessed; more than 4096 are most likely something else.
_SHORTEST = 16
_LONGEST = 4096
# Permissions of other users, none of which the file may have.
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def token(place: Place) -> str:
    """Returns the launcher's secret, or the user's combined with the scheduler's job; raises ConfigError.

    So two jobs that use the same port reject each other's processes.
    """
    if place.token:
        return place.token
    source = VARIABLE
    if VARIABLE in os.environ:
        # A variable that is set to nothing is a Secret that nobody filled in, not a missing one.
        own = os.environ[VARIABLE].strip().encode()
    elif place.source == "Kubernetes":
        problem = "is needed on Kubernetes, whose pods share no home directory"
        raise invalid(VARIABLE, None, problem=problem, fix="set it from a Secret with secretKeyRef")
    else:
        path, own = _of_home()
        source = str(path)
    if not _SHORTEST <= len(own) <= _LONGEST:
        problem = f"must have {_SHORTEST} to {_LONGEST} bytes, but has {len(own)}"
        raise invalid(source, "***", problem=problem, fix="use the output of: openssl rand -hex 32")
    return hmac.new(own, f"runner {place.job}".encode(), "sha256").hexdigest()


def _of_home() -> tuple[Path, bytes]:
    """Returns the file in the user's home directory, which the first run that needs it creates, and its secret."""
    try:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "runner"
        path = folder / "cluster-secret"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(path)
        # Checked on the open file, so that nobody can replace it after that.
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & _OTHERS:
                raise ConfigError(f"{path}: other users can access this secret; run chmod 600 {path}, and own it")
            return path, file.read().strip()
    except (OSError, RuntimeError) as error:
        problem = f"there is none in your home directory ({getattr(error, 'strerror', None) or error})"
        raise invalid(VARIABLE, None, problem=problem, fix="set it to the same secret for all processes") from error


def _make(path: Path) -> None:
    """Creates a file with a new secret, unless another process has been faster."""
    # Linked under its name when complete, so that no process reads a part of it, and only the first one wins. A
    # temporary file is readable for its owner alone.
    with NamedTemporaryFile("w", dir=path.parent) as file:
        file.write(secrets.token_hex(32) + "\n")
        file.flush()
        with suppress(FileExistsError):
            path.hardlink_to(file.name)
