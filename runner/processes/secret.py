"""The secret that the processes of a run prove to each other: of the launcher, a variable, or a file of the user's.

A process that does not know it is not heard. It is never sent, printed or recorded.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from runner.config.schema import ClusterConfig
from runner.errors import ConfigError, invalid
from runner.processes.place import Place

VARIABLE = "RUNNER_CLUSTER_SECRET"
_KEY = "cluster.secret_file"
# bytes; 16 random ones can't be guessed
_SHORTEST = 16
_LONGEST = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def token(config: ClusterConfig, place: Place) -> str:
    """Returns the secret of a run's processes.

    The launcher's, as it is. Else the user's, mixed with the scheduler's job, so that two jobs which meet at a port
    don't take each other's processes in.

    Raises:
      ConfigError: there is none, it is too short, or others can read its file.
    """
    if place.token:
        return place.token
    own = os.environ.get(VARIABLE, "").strip().encode()
    if own:
        _check_length(own, VARIABLE, "***")
    elif config.secret_file is not None:
        own = _read(Path(config.secret_file).expanduser())
    elif place.found == "Kubernetes":
        raise invalid(
            _KEY,
            None,
            problem=f"pods share no home, so Kubernetes needs a secret for all of them in {VARIABLE}",
            fix="take it from a Secret by secretKeyRef",
        )
    else:
        own = _of_home()
    return hmac.new(own, f"runner {place.job}".encode(), "sha256").hexdigest()


def _of_home() -> bytes:
    """Returns the secret of the user's home, which is made by the first run that needs it."""
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
            problem=f"the secret can't be made in your home ({getattr(error, 'strerror', None) or error})",
            fix=f"set {VARIABLE} to the same secret for all processes",
        ) from error
    return _read(path)


def _make(path: Path) -> None:
    """Writes a new secret whole, unless another process has been faster."""
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
    """Returns what a file holds that nobody else can read.

    Raises:
      ConfigError: it can't be read, or others can.
    """
    try:
        # Without blocking: a named pipe would wait for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise invalid(_KEY, path, problem="it must be a file", fix=f"set {VARIABLE}, or another file")
            if status.st_uid not in (os.geteuid(), 0):
                raise invalid(_KEY, path, problem="it belongs to another user", fix="set a file of your own")
            if status.st_mode & _OTHERS:
                raise invalid(_KEY, path, problem="other users can reach it", fix=f"type: chmod 600 {path}")
            own = file.read(_LONGEST + 1).strip()
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_length(own, _KEY, path)
    return own


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return invalid(
        _KEY,
        path,
        problem=f"it can't be read ({error.strerror})",
        fix=f"name a file with a secret and mode 0600, or set {VARIABLE}",
    )


def _check_length(own: bytes, key: str, value: object) -> None:
    if not _SHORTEST <= len(own) <= _LONGEST:
        raise invalid(
            key,
            value,
            problem=f"a secret has {_SHORTEST} to {_LONGEST} bytes, and this one {min(len(own), _LONGEST + 1)}",
            fix="use the output of: openssl rand -hex 32",
        )
