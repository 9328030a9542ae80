"""Identity of runs: digests of what a config computes, and of the code and data files that it computes with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

from runner.config.convert import flatten
from runner.config.import_paths import import_paths
from runner.config.schema import RunConfig
from runner.engine import registry
from runner.host import definition, paths
from runner.host.stores import client
from runner.host.stores.urls import ObjectPath, is_url
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
# Parts of the package that no run computes with: commands, records, pictures. A change there leaves runs as they are.
_PARTS_WITHOUT_ARITHMETIC = (
    "cli",
    "sweep",
    "compare",
    "evaluate",
    "generate",
    "export",
    "plan",
    "advise",
    "verify",
    "runs",
    "init",
    "supervise",
    "notebook",
    "tracking",
    "host",
    "conf",
    "report",
    "look",
    "record",
    "__main__.py",
)
# One file of `host` counts all the same: it seeds what a user's modules draw when they are imported.
_SEEDS = "host/imports.py"
# Groups and keys that decide where, how fast or how visibly a run computes, not what.
_IGNORED_GROUPS = (
    "tracking",
    "sweep",
    "plan",
    "advise",
    "hardware",
    "verify",
    "against",
    "evaluate",
    "generate",
    "replay",
    "export",
)
_IGNORED_PREFIXES = (
    "trainer.checkpoint.",
    "trainer.profile.",
    "cluster.restart",
)
_IGNORED_KEYS = frozenset(
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
_DIGEST_CHARACTERS = 20  # 80 bits: enough for any number of runs, and short enough to read in a tag


def counts(key: str) -> bool:
    """Returns whether a key decides what a run computes, and not only where, how fast or how visibly."""
    is_ignored = key in _IGNORED_KEYS or key.startswith(_IGNORED_PREFIXES) or key.split(".")[0] in _IGNORED_GROUPS
    return not is_ignored


def config_hash(content: Mapping[str, object]) -> str:
    """Returns a digest of what a resolved config computes.

    Args:
      content: nested, plain values.
    """
    counted: dict[str, object] = {}
    for key, value in flatten(content):
        if counts(key):
            counted[key] = value
    return _digest(json.dumps(counted, sort_keys=True, default=str).encode())


def code_version(config: RunConfig) -> str:
    """Returns a digest of what a run computes with: this package, the libraries, a user's own modules and data files.

    A commit would not do: a working tree may have changed since, and an installed package has none.

    Args:
      config: of the run, whose import paths name the modules, and whose `dataset.path` the files.
    """
    content = [_package_digest().encode()]
    content += [_source(path) for path in import_paths(config)]
    for path in (config.dataset.path, *(part.get("path") for part in config.dataset.parts)):
        if path is not None:
            content += _data_files(path)
    return _digest(b"".join(content))


def _data_files(path: str) -> Iterator[bytes]:
    """Yields what tells versions of a user's data files apart; to read them would take too long.

    That is name, size and time of change, or name, size and tag of an object in a store.

    Raises:
      StoreError: the store does not answer.
    """
    if is_url(path):
        for name, (size, tag) in sorted(client.versions(ObjectPath.of(path)).items()):
            yield f"\0{name} {size} {tag.e_tag} {tag.version}".encode(errors="surrogateescape")
        return
    root = Path(path).expanduser()
    files = {root}
    for pattern in ("*", "*/*", "*/*/*"):  # as deep as <split>/<class>/<file>
        files |= set(root.glob(pattern))
    for file in sorted(files):
        with suppress(OSError):
            if file.is_file():
                status = file.stat()
                text = f"\0{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}"
                yield text.encode(errors="surrogateescape")


@cache
def whole_package_digest() -> str:
    """Returns a digest of all of this package's code, with the parts that no run computes with."""
    return _digest(b"".join(f"{inner}\0".encode() + path.read_bytes() for inner, path in _modules()))


def _modules() -> Iterator[tuple[PurePosixPath, Path]]:
    """Yields this package's modules: path inside the package, and path."""
    root = Path(paths.__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        yield PurePosixPath(path.relative_to(root).as_posix()), path


@cache
def _package_digest() -> str:
    digest = hashlib.sha256()
    for inner, path in _modules():
        if inner.parts[0] not in _PARTS_WITHOUT_ARITHMETIC or str(inner) == _SEEDS:
            digest.update(f"{inner}\0".encode() + path.read_bytes())
    for name, version in installed(_LIBRARIES).items():
        digest.update(f"{name}=={version}".encode())
    return digest.hexdigest()


def _source(import_path: str) -> bytes:
    """Returns the source of the module of an import path; empty where it is of this package, or can't be read."""
    module = import_path.rpartition(".")[0]
    if not module or module.split(".")[0] == "runner":
        return b""
    source = definition.source_of(module)
    if source is None:
        return b""
    try:
        return source.read_bytes()
    except OSError:
        return b""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
