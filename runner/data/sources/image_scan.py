"""Scan of image files: digest, size, and whether they can be decoded.

It is recorded in ~/.cache/runner/images.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.config.schema_data import DatasetConfig
from runner.data import images
from runner.data.augment import sizing
from runner.data.sources.file_records import latest_recordable_ns, read_records, write_records
from runner.errors import invalid
from runner.host import cores
from runner.host.folders import cache_folder

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# Version of the records. Increase it with `ScannedFile`, and with what `images.read_header` rejects.
_FORMAT = 3
# Files per task of a thread. A task per file would cost more than checking a file that is already recorded.
_FILES_PER_TASK = 64


@dataclass(frozen=True)
class ScannedFile:
    """The result for one file.

    Attributes:
      bytes: size of the file.
      changed: time of change, in ns.
      sha256: of the content, as hex; empty if the file can't be read.
      height: of the image after its EXIF orientation; 0 if it can't be read.
      width: of the image after its EXIF orientation; 0 if it can't be read.
      gray: whether the image has no colors.
      decoded: whether the scan tried to decode it.
      broken: why it can't be read or decoded; empty if no error was found.
    """

    bytes: int
    changed: int
    sha256: str
    height: int
    width: int
    gray: bool
    decoded: bool
    broken: str


def common_size(config: DatasetConfig, sizes: set[tuple[int, int]]) -> tuple[int, int]:
    """Returns the height and width that all images get.

    Args:
      config: may have it.
      sizes: height and width of the images.

    Raises:
      ConfigError: the config has none, and the images differ.
    """
    size = config.image_size or sizing(config)
    if size is not None:
        height, width = size
        return height, width
    if len(sizes) > 1:
        heights, widths = zip(*sizes, strict=True)
        raise invalid(
            "dataset.image_size",
            None,
            problem=f"the images have {len(sizes):,} different sizes (heights {min(heights)} to {max(heights)}, "
            f"widths {min(widths)} to {max(widths)})",
            fix="set dataset.image_size=[224,224], or dataset.augment=[{name: random_resized_crop, size: [224,224]}]",
        )
    return next(iter(sizes))


def scan(root: Path, files: Sequence[str], *, decode: bool) -> dict[str, ScannedFile]:
    """Scans files in parallel.

    Args:
      root: the folder.
      files: paths relative to it.
      decode: whether to decode each file once, to find broken ones; else only the headers are read.

    Returns:
      The result for each file, in the order of `files`.
    """
    records_path = _records_path(root)
    recorded = _read_records(records_path)
    root_path = str(root)

    def scan_part(part: Sequence[str]) -> list[ScannedFile]:
        results = []
        for file in part:
            path = os.path.join(root_path, file)  # noqa: PTH118 - saves 15 us per file
            results.append(_scan_file(path, recorded.get(file), decode=decode))
        return results

    parts = [files[start : start + _FILES_PER_TASK] for start in range(0, len(files), _FILES_PER_TASK)]
    results: list[ScannedFile] = []
    with ThreadPoolExecutor(cores.available()) as pool:
        for part_results in pool.map(scan_part, parts):
            results.extend(part_results)
    scanned = dict(zip(files, results, strict=True))
    if scanned != recorded:
        _write_records(records_path, scanned)
    return scanned


def _scan_file(path: str, recorded: ScannedFile | None, *, decode: bool) -> ScannedFile:
    """Returns the result for a file, which is read only if it changed."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - called per file, and creating a Path takes longer than the call
        if recorded is not None:
            is_unchanged = (recorded.bytes, recorded.changed) == (stat.st_size, stat.st_ctime_ns)
            if is_unchanged and (recorded.decoded or not decode):
                return recorded
        return _scan_content(Path(path).read_bytes(), stat.st_ctime_ns, decode=decode)
    except OSError as error:
        return ScannedFile(0, 0, "", 0, 0, False, False, error.strerror or str(error))


def _scan_content(data: bytes, changed: int, *, decode: bool) -> ScannedFile:
    digest = hashlib.sha256(data).hexdigest()
    broken = ""
    header = images.Header(0, 0, True)
    try:
        header = images.read_header(data)
        if decode:
            images.decode(data, 3)
    except ValueError as error:
        broken = str(error)
    return ScannedFile(len(data), changed, digest, header.height, header.width, header.gray, decode, broken)


def _records_path(root: Path) -> Path:
    name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:32]
    return cache_folder("images") / f"{name}.json"


def _read_records(path: Path) -> dict[str, ScannedFile]:
    records = {}
    try:
        for file, fields in read_records(path, _FORMAT).items():
            records[file] = ScannedFile(**fields)  # type: ignore[arg-type] # checked by the dataclass
    except TypeError:
        return {}
    return records


def _write_records(path: Path, scanned: Mapping[str, ScannedFile]) -> None:
    latest = latest_recordable_ns()
    records = {}
    for file, result in scanned.items():
        if result.sha256 and result.changed < latest:
            records[file] = asdict(result)
    write_records(path, _FORMAT, records)
