"""The secret of a run's processes, which each must prove to know: the launcher's, a variable, or a file of the user.

It is never sent, printed or recorded.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from runner.cluster.place import Place
from runner.config.schema import ClusterConfig
from runner.errors import ConfigError, invalid

VARIABLE = "RUNNER_CLUSTER_SECRET"
_KEY = "cluster.secret_file"
# Bytes. 16 random ones can't be guessed; more than 4096 are most likely another file.
_SHORTEST = 16
_LONGEST = 4096
# Permissions of other users, none of which the file may have.
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def token(config: ClusterConfig, place: Place) -> str:
    """Returns the secret of a run's processes.

    It is the launcher's, or the user's combined with the scheduler's job, so that two jobs that use the same port
    reject each other's processes.

    Raises:
      ConfigError: there is none, its length is wrong, or others can read its file.
    """
    if place.token:
        return place.token
    own = os.environ.get(VARIABLE, "").strip().encode()
    if own:
        _check_length(own, VARIABLE, "***")
    elif config.secret_file is not None:
        own = _read(Path(config.secret_file).expanduser())
    elif place.source == "Kubernetes":
        raise invalid(
            _KEY,
            None,
            problem=f"needs the variable {VARIABLE} on Kubernetes, whose pods share no home directory",
            fix="set it from a Secret with secretKeyRef",
        )
    else:
        own = _of_home()
    return hmac.new(own, f"runner {place.job}".encode(), "sha256").hexdigest()


def _of_home() -> bytes:
    """Returns the secret in the user's home directory, which the first run that needs it creates."""
    try:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "runner"
        path = folder / "cluster-secret"
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(path)
    except (OSError, RuntimeError) as error:
        raise invalid(
            _KEY,
            None,
            problem=f"can't create a secret in your home directory ({getattr(error, 'strerror', None) or error})",
            fix=f"set {VARIABLE} to the same secret for all processes",
        ) from error
    return _read(path)


def _make(path: Path) -> None:
    """Creates a file with a new secret, unless another process has been faster."""
    # Linked under its name when complete, so that no process reads a part of it, and only the first one wins.
    own = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    handle = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        with suppress(FileExistsError):
            path.hardlink_to(own)
    finally:
        own.unlink()


def _read(path: Path) -> bytes:
    """Returns the secret in a file that only this user can read.

    Raises:
      ConfigError: the file can't be read, or others can read it.
    """
    try:
        # Non-blocking, because opening a named pipe would wait for a writer. The checks are made on the open file, so
        # that nobody can replace it after them.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise invalid(
                    _KEY, path, problem="must be a regular file", fix=f"set {VARIABLE}, or name another file"
                )
            if status.st_uid not in (os.geteuid(), 0):
                raise invalid(_KEY, path, problem="belongs to another user", fix="name a file that you own")
            if status.st_mode & _OTHERS:
                raise invalid(_KEY, path, problem="other users can access it", fix=f"run chmod 600 {path}")
            # One byte more than is allowed, by which `_check_length` sees that the file is longer.
            own = file.read(_LONGEST + 1).strip()
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_length(own, _KEY, path)
    return own


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return invalid(
        _KEY,
        path,
        problem=f"can't be read ({error.strerror})",
        fix=f"name a file with a secret and mode 0600, or set {VARIABLE}",
    )


def _check_length(own: bytes, key: str, value: object) -> None:
    if not _SHORTEST <= len(own) <= _LONGEST:
        raise invalid(
            key,
            value,
            problem=f"must have {_SHORTEST} to {_LONGEST} bytes, but has {min(len(own), _LONGEST + 1)}",
            fix="use the output of: openssl rand -hex 32",
        )
