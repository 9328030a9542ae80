"""Preparation of a TFDS builder. Child process only.

It uses existing data, else TFDS's own download, else the mirror.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader

from runner.data.sources.package_download import UnavailableError
from runner.data.sources.tfds.builders import one_line
from runner.data.sources.tfds.cache import Request
from runner.data.sources.tfds.mirror import preparation as mirror
from runner.errors import DataError

# A host that is reachable accepts a connection in far less. An offline start must fail within seconds, and waits for
# this twice.
_CONNECT_SECONDS = 5.0
# A download that receives nothing for this long has stalled.
_READ_SECONDS = 60.0
# TFDS's own 10 retries, with growing pauses, would keep an offline run waiting for minutes.
_RETRIES = 2


@dataclass(frozen=True)
class PreparedData:
    """A builder's data, ready to be decoded.

    Attributes:
      label: its origin, for the record.
      examples: split -> arrays by name, if TFDS was not needed; None: the builder reads the data.
    """

    label: str
    examples: mirror.Examples = None


def prepare(
    builder: Any, root: Path, request: Request, *, download: bool, use_mirror: bool, report: Callable[[str], None]
) -> PreparedData:
    """Makes sure that a builder's data is prepared.

    The caller holds the builder's lock.

    Args:
      builder: the `tfds.core.DatasetBuilder`.
      root: its data_dir.
      request: the requested data.
      download: whether anything may be downloaded.
      use_mirror: whether the mirror may be used if TFDS's hosts can't be reached.
      report: receives progress lines.

    Returns:
      The prepared data.

    Raises:
      DataError: there is no prepared data and none can be downloaded, or the download has other content.
    """
    if builder.is_prepared():
        return PreparedData("data that TFDS had prepared")
    files = mirror.kept_files(builder, root)
    if files is not None:
        return PreparedData(mirror.label(builder), mirror.prepare(builder, request, files))
    if not download:
        raise _no_data(builder, root, ["dataset.download=false forbids the download"])
    failure = _download_with_tfds(builder, report)
    if failure is None:
        return PreparedData("TFDS's own download")
    reasons = [f"TFDS's own download failed ({failure})"]
    if not mirror.has_mirror(builder):
        reasons.append("there is no mirror of it")
    elif not use_mirror:
        reasons.append("dataset.mirror=false forbids the mirror")
    else:
        try:
            files = mirror.download_files(builder, root, report)
        except UnavailableError as error:
            reasons.append(f"the {mirror.label(builder)} can't be downloaded ({error})")
        else:
            return PreparedData(mirror.label(builder), mirror.prepare(builder, request, files))
    raise _no_data(builder, root, reasons)


def _no_data(builder: Any, root: Path, reasons: list[str]) -> DataError:
    return DataError(
        f"dataset.name={builder.info.full_name}: there is no prepared data in {root}, {', '.join(reasons)}; prepare "
        "it on a machine with a network and set dataset.data_dir or TFDS_DATA_DIR to that folder, or use "
        "dataset=digits, which needs no network"
    )


def _download_with_tfds(builder: Any, report: Callable[[str], None]) -> str | None:
    """Downloads and prepares with TFDS; returns None, or why it failed."""
    has_local_files = any(Path(builder.data_dir_root).glob("downloads/*"))
    is_local = bool(builder.MANUAL_DOWNLOAD_INSTRUCTIONS) or has_local_files
    stage = "downloading with TFDS"
    if is_local:
        stage = "preparing with TFDS"
    report(f"{builder.name}: {stage}")
    with _short_timeouts():
        if not is_local:
            failure = _connection_failure(builder)
            if failure is not None:
                return failure
        try:
            # One folder per builder: TFDS names what it extracts after the file, and builders share file names.
            extract_folder = Path(builder.data_dir_root) / "downloads" / "extracted" / builder.name
            config = tfds.download.DownloadConfig(extract_dir=str(extract_folder), try_download_gcs=False)
            builder.download_and_prepare(download_config=config)
        # Builders raise errors of any type.
        except Exception as error:
            return one_line(error)
    return None


def _connection_failure(builder: Any) -> str | None:
    """Requests the headers of one of the builder's files.

    Returns None, or why there was no answer in time.
    """
    urls = [url for url in builder.url_infos or {} if url.startswith("http")]
    if not urls:
        return None
    answers: list[str | None] = []

    def request_headers() -> None:
        try:
            downloader.requests.head(urls[0], timeout=_CONNECT_SECONDS, allow_redirects=False).close()
            answers.append(None)
        # Any failure means the same: this host gives no answer.
        except Exception as error:
            answers.append(f"its host can't be reached, {type(error).__name__}")

    # In a thread, because the resolution of a host name has no timeout.
    thread = threading.Thread(target=request_headers, daemon=True)
    thread.start()
    thread.join(2 * _CONNECT_SECONDS)
    return answers[0] if answers else "its host does not answer"


@contextlib.contextmanager
def _short_timeouts() -> Iterator[None]:
    """Limits the downloader's timeouts and retries, for which TFDS has no settings."""
    adapter = downloader.requests.adapters.HTTPAdapter
    send = adapter.send
    retries = downloader.MAX_RETRIES

    def send_with_timeout(self: Any, request: Any, stream: bool = False, timeout: Any = None, **options: Any) -> Any:
        timeout = timeout or (_CONNECT_SECONDS, _READ_SECONDS)
        return send(self, request, stream=stream, timeout=timeout, **options)

    adapter.send = send_with_timeout
    downloader.MAX_RETRIES = _RETRIES
    socket.setdefaulttimeout(_READ_SECONDS)
    try:
        yield
    finally:
        adapter.send = send
        downloader.MAX_RETRIES = retries
        socket.setdefaulttimeout(None)
