"""`image_folder`: image files of any size, one folder per class.

They are decoded when they are read.

    photos/<class>/*.jpg                  one split, `train`
    photos/train/<class>/*.png ...        one folder per split: train, validation, test

The examples of a split are ordered by the sha256 of their names, the same on every machine. So a share of a split,
such as `train[:80%]`, has examples of every class. Files that can't be decoded are found by the scan that also hashes
the files, before training starts, so that the order depends on the data only.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data import images, places
from runner.data.base import IMAGE_DIMS, SPLITS, Array, ArraySpec, Encoding, FullDataset, Rows, stack_examples
from runner.data.sources.image_scan import SUFFIXES, ScannedFile, common_size, scan
from runner.errors import DataError, invalid, listed

logger = logging.getLogger(__name__)

# File names that a message lists.
_SHOWN_FILES = 3

# (path relative to the root with `/`, class)
LabeledFile = tuple[str, str]


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """A source that decodes and resizes image files.

    Attributes:
      root: the folder.
      files: paths relative to it, with `/`.
      labels: int32, the class of each file.
      image_size: height and width of the resized images.
      channels: 1, 3 or 4.
      specs: of `image` and `label`.
    """

    root: Path
    files: Sequence[str]
    labels: Array
    image_size: tuple[int, int]
    channels: int
    specs: Mapping[str, ArraySpec]

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.files)

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns resized images and labels."""
        return stack_examples(self.specs, rows, self.example)

    def column(self, name: str) -> Array | None:
        """Returns the labels, for which no file is read; None for the images."""
        if name == "label":
            return self.labels
        return None

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns one resized image and its label."""
        del epoch
        example = self.original(row)
        example["image"] = images.resize(example["image"], self.image_size)
        return example

    def original(self, row: int) -> dict[str, Array]:
        """Returns one image in the size of its file, and its label.

        Raises:
          DataError: the file can't be read or decoded; the message names it.
        """
        path = self.example_name(row)
        try:
            image = images.decode(_read_bytes(path), self.channels)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} can't be decoded ({error}); remove it, or set dataset.skip_broken=true"
            ) from error
        return {"image": image, "label": self.labels[row]}

    def example_name(self, row: int) -> str:
        """Returns the path of the file."""
        return os.path.join(self.root, self.files[row])  # noqa: PTH118 - called per example; a Path costs 15 us more


def _read_bytes(path: str) -> bytes:
    """Returns a file's bytes in few system calls.

    Each call releases the GIL and then waits for it again.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        data = b""
        # A read may return less than it was asked for, as on network file systems.
        while len(data) < size:
            chunk = os.read(file, size - len(data))
            if not chunk:
                break
            data += chunk
        return data
    finally:
        os.close(file)


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Lists and scans a folder's images.

    Args:
      config: its `path`, `image_size`, `channels`, `augment` and `skip_broken` matter.
      encoding: of the run whose classes are used; None: the folder's own, sorted by name.

    Returns:
      One source per split.

    Raises:
      ConfigError: there are no images, or images of several sizes and no size to resize them to.
      DataError: a file can't be read.
    """
    root = places.local(config.path or "").absolute()
    listed = {split: _list_images(folder, root) for split, folder in _split_folders(root).items()}
    folder_classes: set[str] = set()
    all_files: list[str] = []
    for file, label in chain.from_iterable(listed.values()):
        all_files.append(file)
        folder_classes.add(label)
    classes = sorted(folder_classes)
    if encoding is not None:
        classes = list(encoding.categories.get("label", classes))
    _check_classes(config, sorted(folder_classes), classes)

    scanned = scan(root, all_files, decode=config.skip_broken)
    broken = {}
    results = []
    for file, result in scanned.items():
        if result.broken:
            broken[file] = result.broken
        else:
            results.append(result)
    if broken:
        _report_broken(config, root, broken)
    usable: dict[str, list[LabeledFile]] = {}
    for split, files in listed.items():
        usable[split] = [(file, label) for file, label in files if file not in broken]
    if not results:
        first = next(iter(broken))
        raise DataError(f"{root}: none of {len(broken):,} image files can be decoded, for example {first}")

    size = common_size(config, {(result.height, result.width) for result in results})
    channels = config.channels or _channels(results)
    specs = {
        "image": ArraySpec((*size, channels), "uint8", IMAGE_DIMS),
        "label": ArraySpec((), "int32", names=tuple(classes)),
    }
    # The order of the classes is their numbers, which a model's outputs have too.
    number_of_class = dict(zip(classes, range(len(classes)), strict=True))
    splits = {}
    for split, files in usable.items():
        if files:
            names, labels = zip(*sorted(files, key=_hash_of_name), strict=True)
            numbers = np.array([number_of_class[label] for label in labels], np.int32)
            splits[split] = ImageFolder(root, names, numbers, size, channels, specs)
    source = places.location(config.path or "")
    if broken:
        source += f", without {len(broken):,} broken files"
    return FullDataset(
        name=root.name,
        version="",
        splits=splits,
        digest=_digest(usable, scanned),
        source=source,
        encoding=Encoding(categories={"label": tuple(classes)}),
    )


def location(config: DatasetConfig) -> str:
    """Returns the folder."""
    return places.location(config.path or "")


def _hash_of_name(labeled: LabeledFile) -> bytes:
    file, _ = labeled
    return hashlib.sha256(file.encode()).digest()


def _split_folders(root: Path) -> dict[str, Path]:
    """Returns the folder of each split: the subfolders, or the folder as `train`."""
    # A class may be called like a split: only a folder that has class folders itself is one.
    folders = {split: root / split for split in SPLITS if _has_class_folders(root / split)}
    if "train" not in folders:
        return {"train": root}
    return folders


def _has_class_folders(folder: Path) -> bool:
    return folder.is_dir() and any(map(_is_class_folder, folder.iterdir()))


def _is_class_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _list_images(folder: Path, root: Path) -> list[LabeledFile]:
    """Returns every image file in the class folders of a split, at any depth."""
    listed: list[LabeledFile] = []
    for class_folder in sorted(folder.iterdir()):
        if _is_class_folder(class_folder):
            relative = class_folder.relative_to(root).as_posix()
            for file in _images_below(str(class_folder), relative):
                listed.append((file, class_folder.name))
    if not listed:
        raise invalid(
            "dataset.path",
            folder,
            problem=f"must have one folder per class, with files of type {', '.join(SUFFIXES)}",
            fix="move the images of each class into a folder with its name",
        )
    return listed


def _images_below(folder: str, name: str) -> Iterator[str]:
    """Yields the image files in a folder and its subfolders, sorted.

    Hidden files are left out.

    It uses plain strings and the entries' own information: with a `Path` and a system call per file, listing took most
    of a second start's time. Links to folders are not followed, and a folder that can't be read counts as empty.

    Args:
      folder: its path.
      name: prefix of the paths that are yielded.
    """
    try:
        with os.scandir(folder) as opened:
            visible = [entry for entry in opened if not entry.name.startswith(".")]
    except PermissionError:
        return
    for entry in sorted(visible, key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from _images_below(entry.path, f"{name}/{entry.name}")
        elif entry.name.lower().endswith(SUFFIXES) and os.path.isfile(entry.path):  # noqa: PTH113 - see the docstring
            yield f"{name}/{entry.name}"


def _check_classes(config: DatasetConfig, folder_classes: Sequence[str], classes: Sequence[str]) -> None:
    unknown = [name for name in folder_classes if name not in classes]
    if unknown:
        raise invalid(
            "dataset.path",
            config.path,
            problem=f"has a folder {unknown[0]}, which is not a class of the run (its classes: {listed(classes)})",
            fix="remove the folders of other classes",
        )
    if len(classes) < 2:
        raise invalid(
            "dataset.path",
            config.path,
            problem=f"needs at least 2 classes, but only the folder {classes[0]} has images",
            fix="move the images of each class into a folder with its name",
        )


def _channels(results: Sequence[ScannedFile]) -> int:
    if all(result.gray for result in results):
        return 1
    return 3


def _report_broken(config: DatasetConfig, root: Path, broken: Mapping[str, str]) -> None:
    """Warns about the files that can't be decoded, or raises."""
    first = next(iter(broken))
    if not config.skip_broken:
        others = ""
        if len(broken) > 1:
            others = f", nor can {len(broken) - 1:,} other files"
        raise DataError(
            f"{root / first} can't be read ({broken[first]}){others}; fix or remove it, or set "
            "dataset.skip_broken=true"
        )
    shown = ", ".join(list(broken)[:_SHOWN_FILES])
    if len(broken) > _SHOWN_FILES:
        shown += ", ..."
    logger.warning("%s: skipping %s files that can't be decoded: %s", root, f"{len(broken):,}", shown)


def _digest(splits: Mapping[str, Sequence[LabeledFile]], scanned: Mapping[str, ScannedFile]) -> str:
    """Returns the sha256 (hex) of every file's split, name and content."""
    total = hashlib.sha256()
    for split, files in sorted(splits.items()):
        # In the order of names: that of the split depends on their hashes, and a digest should not.
        for file, _ in sorted(files):
            total.update(f"{split}\0{file}\0{scanned[file].sha256}\n".encode())
    return total.hexdigest()
