"""Which keys decide what a run computes, and a digest of the code that it computes with."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from runner.config import import_path
from runner.engine import registry
from runner.host import paths
from runner.host.libraries import installed

_LIBRARIES = (*registry.distributions(), "numpy", "simplejpeg", "opencv-python-headless", "pillow")
_GROUPS_OF_COMMANDS = ("sweep", "plan", "advise", "hardware", "verify", "evaluate", "generate", "replay", "export")
# Groups and keys that decide where, how fast or how visibly a run computes, not what.
_IGNORED_GROUPS = ("tracking", *_GROUPS_OF_COMMANDS)
_IGNORED_PREFIXES = ("trainer.checkpoint.", "trainer.profile.", "cluster.restart")
_IGNORED_KEYS = frozenset(
    {
        "dataset.data_dir",
        "dataset.download",
        "dataset.prefetch",
        "dataset.workers",
        "trainer.progress",
        "trainer.verify_first",
    }
)
_DIGEST_CHARACTERS = 20  # 80 bits: enough for any number of runs, and short enough to read in a tag


def counts(key: str) -> bool:
    """Returns whether a key decides what a run computes, and not only where, how fast or how visibly."""
    group = key.partition(".")[0]
    return not (key in _IGNORED_KEYS or key.startswith(_IGNORED_PREFIXES) or group in _IGNORED_GROUPS)


def code_version(import_paths: Iterable[str]) -> str:
    """Returns a digest of this package, the libraries, and a user's own modules, which the import paths name.

    A commit would not do: a working tree may have changed since, and an installed package has none.
    """
    digest = hashlib.sha256(_package_digest().encode())
    for path in import_paths:
        source = import_path.source_of(path)
        if source is not None:
            digest.update(source.read_bytes())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that compute."""
    return {"python": platform.python_version(), **installed(("runner", *registry.distributions(), "numpy"))}


@cache
def _package_digest() -> str:
    digest = hashlib.sha256()
    root = Path(paths.__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    for name, version in installed(_LIBRARIES).items():
        digest.update(f"{name}=={version}".encode())
    return digest.hexdigest()
