"""Gets a TFDS builder prepared: what is there already, TFDS's own download, then the mirror. Child process only."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums, downloader

from runner.data.sources.tfds import mirror
from runner.data.sources.tfds.builders import one_line
from runner.errors import DataError

_ORIGINALS = ".originals"  # folder of the data_dir
_CONNECT_SECONDS = 5.0
_READ_SECONDS = 60.0
_RETRIES = 2  # TFDS's 10, with their growing pauses, hold an offline run up for minutes


@dataclass(frozen=True)
class Source:
    """Where a builder's data is.

    Attributes:
      label: where it came from, in words.
      files: its original files, decompressed, by name, which TFDS has not prepared; None: TFDS has prepared it.
    """

    label: str
    files: Mapping[str, bytes] | None = None


def prepare(
    builder: Any, root: Path, *, download: bool, use_mirror: bool, as_files: bool, say: Callable[[str], None]
) -> Source:
    """Makes sure that a builder's data is prepared; the caller holds the builder's lock.

    Args:
      builder: the `tfds.core.DatasetBuilder`.
      root: its data_dir.
      download: whether anything may be fetched.
      use_mirror: whether the package indexes may stand in for TFDS's hosts.
      as_files: whether a mirror's original files will do, which TFDS need not prepare then.
      say: told what is fetched from where.

    Returns:
      Where the data is.

    Raises:
      DataError: there is no prepared data and none can be fetched, or what was fetched is not what it should be.
    """
    if builder.is_prepared():
        return Source("data that TFDS had prepared")
    if builder.name in mirror.MIRRORS:
        files = mirror.kept(builder.name, _originals(builder, root))
        if files is not None:
            return _from_files(builder, files, as_files=as_files)
    reasons = []
    if not download:
        reasons.append("dataset.download=false forbids fetching")
    else:
        failure = _download(builder, say)
        if failure is None:
            return Source("TFDS's own download")
        reasons.append(f"TFDS's own download failed ({failure})")
        if builder.name not in mirror.MIRRORS:
            reasons.append("there is no mirror of it")
        elif not use_mirror:
            reasons.append("dataset.mirror=false forbids the mirror")
        else:
            try:
                return _from_mirror(builder, root, say, as_files=as_files)
            except mirror.UnavailableError as error:
                reasons.append(f"the {mirror.MIRRORS[builder.name].label} can't be had ({error})")
    raise DataError(
        f"no data for dataset.name={builder.info.full_name}: none is prepared in {root}, {', '.join(reasons)}; "
        "prepare it where there is a network and point dataset.data_dir or TFDS_DATA_DIR at that folder, "
        "or use dataset=digits, which needs no network"
    )


def _download(builder: Any, say: Callable[[str], None]) -> str | None:
    """Lets TFDS download and prepare; returns None, or why it failed."""
    local = builder.MANUAL_DOWNLOAD_INSTRUCTIONS or any(Path(builder.data_dir_root).glob("downloads/*"))
    say(f"{builder.name}: {'preparing with TFDS' if local else 'fetching with TFDS'}")
    with _impatient():
        if not local and (failure := _unreachable(builder)):
            return failure
        try:
            # One folder a builder: TFDS names what it extracts after the file, and builders share file names.
            extract = Path(builder.data_dir_root) / "downloads" / "extracted" / builder.name
            config = tfds.download.DownloadConfig(extract_dir=str(extract), try_download_gcs=False)
            builder.download_and_prepare(download_config=config)
        except Exception as error:  # builders raise whatever their code raises
            return one_line(error)
    return None


def _unreachable(builder: Any) -> str | None:
    """Asks for the head of one of the builder's files; returns None, or why there was no answer in time."""
    url = next((url for url in builder.url_infos or {} if url.startswith("http")), None)
    if url is None:
        return None
    answers: list[str | None] = []

    def ask() -> None:
        try:
            downloader.requests.head(url, timeout=_CONNECT_SECONDS, allow_redirects=False).close()
            answers.append(None)
        except Exception as error:  # any failure means the same
            answers.append(f"its host can't be reached, {type(error).__name__}")

    # In a thread, since the look-up of a name knows no timeout.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2 * _CONNECT_SECONDS)
    return answers[0] if answers else "its host does not answer"


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Bounds what TFDS's downloader waits and retries, which it has no settings for."""
    adapter = downloader.requests.adapters.HTTPAdapter
    send = adapter.send
    retries = downloader.MAX_RETRIES

    def send_in_time(self: Any, request: Any, stream: bool = False, timeout: Any = None, **options: Any) -> Any:
        return send(self, request, stream=stream, timeout=timeout or (_CONNECT_SECONDS, _READ_SECONDS), **options)

    adapter.send = send_in_time
    downloader.MAX_RETRIES = _RETRIES
    socket.setdefaulttimeout(_READ_SECONDS)
    try:
        yield
    finally:
        adapter.send = send
        downloader.MAX_RETRIES = retries
        socket.setdefaulttimeout(None)


def _originals(builder: Any, root: Path) -> Path:
    """Returns the folder of a mirror's files, which are kept for what TFDS is to prepare of them without a network."""
    return root / _ORIGINALS / str(builder.name)


def _from_mirror(builder: Any, root: Path, say: Callable[[str], None], *, as_files: bool) -> Source:
    place = _originals(builder, root)
    with tempfile.TemporaryDirectory(prefix="runner-mirror-") as scratch:
        mirror.fetch(builder.name, Path(scratch), say)
        if not place.exists():  # files that are there and broken are not ours to replace
            partial = place.with_name(f".partial-{builder.name}")  # under the lock, so one there is a killed run's
            shutil.copytree(Path(scratch) / "files", partial, dirs_exist_ok=True)
            partial.replace(place)
        files = mirror.kept(builder.name, Path(scratch) / "files")
    if files is None:
        raise DataError(f"the files of {builder.name} can't be read again; make room in {tempfile.gettempdir()}")
    return _from_files(builder, files, as_files=as_files)


def _from_files(builder: Any, files: Mapping[str, bytes], *, as_files: bool) -> Source:
    """Returns original files as they are, or lets TFDS prepare them."""
    label = mirror.MIRRORS[builder.name].label
    if as_files:
        return Source(label, files)
    with tempfile.TemporaryDirectory(prefix="runner-mirror-") as scratch:
        manual = Path(scratch) / "files"
        manual.mkdir()
        for name, content in files.items():
            (manual / f"{name}.gz").write_bytes(gzip.compress(content, compresslevel=1, mtime=0))
        config = tfds.download.DownloadConfig(
            manual_dir=str(manual), extract_dir=str(Path(scratch) / "extracted"), try_download_gcs=False
        )
        with _registered(builder, manual):
            builder.download_and_prepare(download_dir=str(Path(scratch) / "downloads"), download_config=config)
    return Source(label)


@contextlib.contextmanager
def _registered(builder: Any, files: Path) -> Iterator[None]:
    """Has the builder expect these `.gz` files.

    TFDS registers digests of compressed files, and every zlib compresses otherwise. What is inside was compared with
    its own digests before, in `mirror.fetch`.
    """
    infos = builder.url_infos
    original = dict(infos)
    for url, info in original.items():
        infos[url] = checksums.compute_url_info(tfds.core.as_path(files / info.filename))
    try:
        yield
    finally:
        infos.update(original)
