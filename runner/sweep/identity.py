"""When two runs are the same: equal configs, as far as they change what is computed, under equal code and data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from runner.config.convert import flatten
from runner.config.import_paths import import_paths
from runner.config.schema import RunConfig
from runner.engine import registry
from runner.host import definition, paths
from runner.host.versions import installed

CONFIG_TAG = "runner.config"
CODE_TAG = "runner.code"
_LIBRARIES = (
    *registry.distributions(),
    "numpy",
    "simplejpeg",
    "opencv-python-headless",
    "pillow",
    "grain",
)
_SEEDS = "host/imports.py"  # seeds what a user's modules draw when they are imported
# Parts of the package that no run computes with: its commands, its records, its pictures.
_OTHER_PARTS = (
    "cli",
    "sweep",
    "compare",
    "evaluate",
    "export",
    "plan",
    "verify",
    "tracking",
    "host",
    "conf",
    "report",
    "look",
    "record",
    "__main__.py",
)
_BESIDE = ("tracking", "sweep", "plan", "verify", "against", "evaluate", "export")
# Keys that say where, how fast or how visibly, not what.
_NO_MATTER = frozenset(
    {
        "engine.intra_op_threads",
        "dataset.data_dir",
        "dataset.download",
        "dataset.mirror",
        "dataset.prefetch",
        "dataset.workers",
        "dataset.worker_kind",
        "trainer.progress",
        "trainer.verify_first",
    }
)


def config_hash(content: Mapping[str, object]) -> str:
    """Returns a digest of what a resolved config computes.

    Args:
      content: nested, plain values; where it is recorded, and what its sweep does, don't count.
    """
    leaves = {
        key: value
        for key, value in flatten(content)
        if key not in _NO_MATTER and not key.startswith(("trainer.checkpoint.", "trainer.profile."))
    }
    counted = {key: value for key, value in leaves.items() if key.split(".")[0] not in _BESIDE}
    return _digest(json.dumps(counted, sort_keys=True, default=str).encode())


def code_version(config: RunConfig) -> str:
    """Returns a digest of what a run computes with: this package, the libraries, a user's own modules and data files.

    A commit would not do: a working tree may have changed since, and an installed package has none.

    Args:
      config: of the run, whose import paths name the modules, and whose `dataset.path` the files.
    """
    own = [*map(_source, import_paths(config)), *_data_files(config.dataset.path)]
    return _digest(b"".join([_package_digest().encode(), *own]))


def _data_files(path: str | None) -> Iterator[bytes]:
    """Yields name, size and time of change of a user's data files, which take no time to look at."""
    if path is None:
        return
    root = Path(path).expanduser()
    found = {root, *(file for deep in ("*", "*/*", "*/*/*") for file in root.glob(deep))}  # <split>/<class>/<file>
    for file in sorted(found):
        with suppress(OSError):
            if file.is_file():
                seen = file.stat()
                told = f"\0{file.relative_to(root)} {seen.st_size} {seen.st_mtime_ns}"
                yield told.encode(errors="surrogateescape")


@cache
def _package_digest() -> str:
    root = Path(paths.__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        if inner.parts[0] not in _OTHER_PARTS or inner.as_posix() == _SEEDS:
            digest.update(inner.as_posix().encode() + b"\0" + path.read_bytes())
    for name, version in installed(_LIBRARIES).items():
        digest.update(f"{name}=={version}".encode())
    return digest.hexdigest()


def _source(target: str) -> bytes:
    module = target.rpartition(".")[0]
    if not module or module.split(".")[0] == "runner":
        return b""
    source = definition.source_of(module)
    try:
        return source.read_bytes() if source is not None else b""
    except OSError:
        return b""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]
