"""`image_folder`: image files in a folder a class, of any size, decoded when they are read.

    photos/<class>/*.jpg                  one split, `train`
    photos/train/<class>/*.png ...        a split a folder: train, validation, test

The order of a split's examples is that of the sha256 of their names, the same on every machine: so a share of a split,
as `train[:80%]`, has examples of every class. Files that can't be decoded are found by the scan that also hashes them,
before anything is trained, so that the order is a function of the data alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data import images
from runner.data.augment import sizing
from runner.data.base import SPLITS, Array, ArraySpec, Encoding, Rows, stacked
from runner.data.cut import Whole
from runner.data.sources.image_scan import SUFFIXES, Scanned, scan
from runner.errors import DataError, invalid

logger = logging.getLogger(__name__)

_SHOWN = 3  # file names in a message


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Image files and the classes that they are of.

    Attributes:
      root: the folder.
      files: paths below it, with `/`.
      labels: int32, the class of each.
      image_size: height and width that images are resized to.
      channels: 1, 3 or 4.
      specs: of `image` and `label`.
      holds_gil: decoding lets go of the interpreter's lock.
    """

    root: Path
    files: Sequence[str]
    labels: Array
    image_size: tuple[int, int]
    channels: int
    specs: Mapping[str, ArraySpec]
    holds_gil: bool = False

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.files)

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns images, each resized, and labels."""
        return stacked(self.specs, rows, self.example)

    def column(self, name: str) -> Array | None:
        """Returns the labels, for which no file is read."""
        return self.labels if name == "label" else None

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns one image, resized, and its label."""
        del epoch
        made = self.original(row)
        return made | {"image": images.resize(made["image"], self.image_size)}

    def original(self, row: int) -> dict[str, Array]:
        """Returns one image as large as it is in its file, and its label.

        Raises:
          DataError: the file can't be read or decoded; names it.
        """
        path = self.example_name(row)
        try:
            image = images.decode(_bytes(path), self.channels)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} can't be decoded ({error}); remove it, or set dataset.skip_broken=true"
            ) from error
        return {"image": image, "label": self.labels[row]}

    def example_name(self, row: int) -> str:
        """Returns the file."""
        return os.path.join(self.root, self.files[row])  # noqa: PTH118 - for each example, and pathlib takes 15 us


def _bytes(path: str) -> bytes:
    """Returns a file's bytes, in few calls: each lets go of the interpreter's lock, and waits for it."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(file).st_size
        data = b""
        while len(data) < size and (more := os.read(file, size - len(data))):
            data += more
        return data
    finally:
        os.close(file)


def load(config: DatasetConfig, encoding: Encoding | None = None) -> Whole:
    """Finds a folder's images, hashes them and looks at their sizes.

    Args:
      config: of which `path`, `image_size`, `channels`, `augment` and `skip_broken` count.
      encoding: of the run whose classes are to be used; null: the folder's own, in the order of their names.

    Returns:
      A source a split.

    Raises:
      ConfigError: no images there, or images of several sizes and no size to bring them to.
      DataError: a file can't be read.
    """
    root = Path(config.path or "").expanduser().absolute()
    folders = _splits(root)
    listed = {split: _list(folder, root) for split, folder in folders.items()}
    names = sorted({name for files in listed.values() for _, name in files})
    classes = names if encoding is None else list(encoding.categories.get("label", names))
    _check_classes(config, names, classes)
    found = scan(root, [file for files in listed.values() for file, _ in files], decode=config.skip_broken)
    broken = {file: one.broken for file, one in found.items() if one.broken}
    if broken:
        _tell_broken(config, root, broken)
    kept = {split: [pair for pair in files if pair[0] not in broken] for split, files in listed.items()}
    good = [found[file] for files in kept.values() for file, _ in files]
    if not good:
        raise DataError(f"{root}: none of {len(broken):,} image files can be decoded, as {next(iter(broken))}")
    size = _size(config, good)
    channels = config.channels or (1 if all(one.gray for one in good) else 3)
    specs = {
        "image": ArraySpec((*size, channels), "uint8", ("height", "width", "channel")),
        "label": ArraySpec((), "int32", names=tuple(classes)),
    }
    number = {name: place for place, name in enumerate(classes)}
    splits = {}
    for split, files in kept.items():
        if files:
            files = sorted(files, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
            labels = np.array([number[name] for _, name in files], np.int32)
            splits[split] = ImageFolder(root, [file for file, _ in files], labels, size, channels, specs)
    return Whole(
        name=root.name,
        version="",
        splits=splits,
        digest=_digest(kept, found),
        source=str(root) + (f", without {len(broken):,} broken files" if broken else ""),
        encoding=Encoding(categories={"label": tuple(classes)}),
    )


def _splits(root: Path) -> dict[str, Path]:
    """Returns the folder of each split: those that a split is named after, else the one that is given."""
    own = {name: root / name for name in SPLITS if _has_classes(root / name)}
    return own if "train" in own else {"train": root}


def _has_classes(folder: Path) -> bool:
    return folder.is_dir() and any(one.is_dir() and not one.name.startswith(".") for one in folder.iterdir())


def _list(folder: Path, root: Path) -> list[tuple[str, str]]:
    """Returns (path below root, class) of every image file in a folder's folders, however deep below a class."""
    found: list[tuple[str, str]] = []
    for kind in sorted(folder.iterdir()):
        if kind.is_dir() and not kind.name.startswith("."):
            found += ((file, kind.name) for file in _below(str(kind), kind.relative_to(root).as_posix()))
    if not found:
        raise invalid(
            "dataset.path",
            folder,
            problem=f"a folder of a folder a class, with files of {', '.join(SUFFIXES)} in it",
            fix="put the images of each class into a folder of its name",
        )
    return found


def _below(folder: str, name: str) -> Iterator[str]:
    """Yields the image files of a folder and of the folders in it, in order, without what is hidden.

    Plain strings, and what reading a folder tells of its entries: a `Path` and a call of the system for each file took
    most of a second start. Links to folders are not followed, and a folder that can't be read has no files.

    Args:
      folder: its path.
      name: what the paths of its files begin with.
    """
    try:
        with os.scandir(folder) as opened:
            entries = sorted((one for one in opened if not one.name.startswith(".")), key=lambda one: one.name)
    except PermissionError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, f"{name}/{entry.name}")
        elif entry.name.lower().endswith(SUFFIXES) and os.path.isfile(entry.path):  # noqa: PTH113 - as above
            yield f"{name}/{entry.name}"


def _check_classes(config: DatasetConfig, names: Sequence[str], classes: Sequence[str]) -> None:
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise invalid(
            "dataset.path",
            config.path,
            problem=f"the run's classes are {', '.join(classes)}, and there is a folder {unknown[0]}",
            fix="take out the folders of other classes",
        )
    if len(classes) < 2:
        raise invalid(
            "dataset.path",
            config.path,
            problem=f"at least 2 classes, and there is one folder, {classes[0]}, with images",
            fix="put the images of each class into a folder of its name",
        )


def _size(config: DatasetConfig, good: Sequence[Scanned]) -> tuple[int, int]:
    wanted = config.image_size or sizing(config)
    if wanted is not None:
        return wanted[0], wanted[1]
    sizes = sorted({(one.height, one.width) for one in good})
    if len(sizes) > 1:
        (low, narrow), (high, wide) = (
            [min(size[dim] for size in sizes) for dim in (0, 1)],
            [max(size[dim] for size in sizes) for dim in (0, 1)],
        )
        raise invalid(
            "dataset.image_size",
            None,
            problem=f"the images are of {len(sizes):,} sizes, from {low} to {high} high and {narrow} to {wide} wide",
            fix="set dataset.image_size=[224,224], or dataset.augment=[{name: random_resized_crop, size: [224,224]}]",
        )
    return sizes[0]


def _tell_broken(config: DatasetConfig, root: Path, broken: Mapping[str, str]) -> None:
    first = next(iter(broken))
    if not config.skip_broken:
        more = f", and {len(broken) - 1:,} more can't" if len(broken) > 1 else ""
        raise DataError(
            f"{root / first} can't be read ({broken[first]}){more}; fix or remove it, or set dataset.skip_broken=true"
        )
    shown = ", ".join(list(broken)[:_SHOWN]) + (", ..." if len(broken) > _SHOWN else "")
    logger.warning("%s: %s files that can't be decoded are left out: %s", root, f"{len(broken):,}", shown)


def _digest(kept: Mapping[str, Sequence[tuple[str, str]]], found: Mapping[str, Scanned]) -> str:
    """Returns sha256 (hex) of every file's split, name and content."""
    total = hashlib.sha256()
    for split, files in sorted(kept.items()):
        for file, _ in sorted(files):
            total.update(f"{split}\0{file}\0{found[file].sha256}\n".encode())
    return total.hexdigest()
