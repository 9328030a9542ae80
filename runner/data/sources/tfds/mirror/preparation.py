"""The mirror's entry point: prepares a builder's data. Child process only."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums

from runner.data.base import Array
from runner.data.sources.tfds.cache import Request
from runner.data.sources.tfds.mirror import originals
from runner.data.sources.tfds.mirror.packages import PACKAGES

# Folder of the data_dir in which the original files are kept, so that TFDS can prepare them later without a network.
_ORIGINALS = ".originals"

# Split -> arrays by name, or None if TFDS has prepared the data and the builder reads it.
Examples = Mapping[str, Mapping[str, Array]] | None


def has_mirror(builder: Any) -> bool:
    """Returns whether a builder's original files are in a package."""
    return builder.name in PACKAGES


def label(builder: Any) -> str:
    """Returns the name of the builder's package, for messages and the record."""
    return PACKAGES[builder.name].label


def kept_files(builder: Any, root: Path) -> Mapping[str, bytes] | None:
    """Returns an earlier run's original files, decompressed and verified, or None.

    Args:
      builder: the `tfds.core.DatasetBuilder`.
      root: its data_dir.
    """
    if not has_mirror(builder):
        return None
    return originals.read(builder.name, _originals_folder(builder, root))


def download_files(builder: Any, root: Path, report: Callable[[str], None]) -> Mapping[str, bytes]:
    """Downloads a package; keeps and returns its original files, verified.

    They are returned decompressed.

    Args:
      builder: the `tfds.core.DatasetBuilder`.
      root: its data_dir.
      report: receives progress lines.

    Raises:
      UnavailableError: the package can't be downloaded.
      DataError: the package does not have the original files.
    """
    package = PACKAGES[builder.name]
    report(f"{builder.name}: downloading the {package.label}")
    with tempfile.TemporaryDirectory(prefix="runner-mirror-") as scratch:
        contents = package.download(Path(scratch))
    originals.verify(builder.name, contents, package.label)
    folder = _originals_folder(builder, root)
    # Existing files are damaged, or `kept_files` would have returned them. They may be a user's, so they stay.
    if not folder.exists():
        # The caller holds the lock, so an existing partial folder is of a run that was killed.
        partial = folder.with_name(f".partial-{builder.name}")
        partial.mkdir(parents=True, exist_ok=True)
        originals.write(contents, partial)
        partial.replace(folder)
    return contents


def _originals_folder(builder: Any, root: Path) -> Path:
    return root / _ORIGINALS / str(builder.name)


def prepare(builder: Any, request: Request, contents: Mapping[str, bytes]) -> Examples:
    """Returns a builder's examples, or lets TFDS prepare them.

    Plain images and labels in a known order need no TFDS; other features and sizes do.

    Args:
      builder: the `tfds.core.DatasetBuilder`.
      request: the requested data.
      contents: its original files, from `kept_files` or `download_files`.

    Returns:
      Split -> arrays by name; None if TFDS has prepared the data.
    """
    is_plain = request.features is None and request.image_size is None and request.code is None and not request.text
    if is_plain and originals.ORDERED.get(builder.name) == str(builder.version):
        return originals.in_tfds_order(contents)
    with tempfile.TemporaryDirectory(prefix="runner-mirror-") as scratch:
        manual = Path(scratch) / "files"
        manual.mkdir()
        originals.write(contents, manual)
        config = tfds.download.DownloadConfig(
            manual_dir=str(manual), extract_dir=str(Path(scratch) / "extracted"), try_download_gcs=False
        )
        with _registered(builder, manual):
            builder.download_and_prepare(download_dir=str(Path(scratch) / "downloads"), download_config=config)
    return None


@contextlib.contextmanager
def _registered(builder: Any, files: Path) -> Iterator[None]:
    """Makes the builder accept these `.gz` files.

    TFDS registers the digests of compressed files, which differ between versions of zlib. The decompressed content has
    already been verified.
    """
    infos = builder.url_infos
    original = dict(infos)
    for url, info in original.items():
        infos[url] = checksums.compute_url_info(tfds.core.as_path(files / info.filename))
    try:
        yield
    finally:
        infos.update(original)
