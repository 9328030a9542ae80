# ruff: noqa: D102 - a source overrides what DataSource documents
"""`image_folder`: image files of any size, one folder per class, decoded when they are read.

    photos/<class>/*.jpg                  one split, `train`
    photos/train/<class>/*.png ...        one folder per split: train, validation, test

The examples of a split are ordered by the sha256 of their names, the same on every machine. So a share of a split,
such as `train[:80%]`, has examples of every class.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.config.schema_data import DatasetConfig
from runner.data.base import SPLITS, Array, ArraySpec, Encoding, ExampleSource, FullDataset
from runner.data.image_files import ImageDecoder, decoder_of
from runner.errors import DataError, invalid, listed

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

# (path relative to the root with `/`, class)
LabeledFile = tuple[str, str]


@dataclass(frozen=True, eq=False)
class ImageFolder(ExampleSource):
    """Image files below `root`, each with its class."""

    root: Path
    files: Sequence[str]
    labels: Array
    decoder: ImageDecoder
    specs: Mapping[str, ArraySpec]

    @property
    def size(self) -> int:
        return len(self.files)

    def column(self, name: str) -> Array | None:
        if name == "label":
            return self.labels
        return None

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        del epoch
        return self._decoded(row, self.decoder.resized)

    def original(self, row: int) -> dict[str, Array]:
        return self._decoded(row, self.decoder.original)

    def _decoded(self, row: int, decode: Callable[[bytes], Array]) -> dict[str, Array]:
        path = Path(self.example_name(row))
        try:
            return {"image": decode(path.read_bytes()), "label": self.labels[row]}
        except (OSError, ValueError) as error:
            raise DataError(f"{path} can't be decoded ({error}); fix or remove it") from error

    def example_name(self, row: int) -> str:
        return os.path.join(self.root, self.files[row])  # noqa: PTH118 - called per example; a Path costs 15 us more


def load(config: DatasetConfig, encoding: Encoding | None = None) -> FullDataset:
    """Lists a folder's images. The classes are those of the run, else the folder's own, sorted by name."""
    root = Path(config.path or "").expanduser().absolute()
    files = {}
    found_classes = set()
    for split, folder in _split_folders(root).items():
        files[split] = _list_images(folder, root)
        for _, label in files[split]:
            found_classes.add(label)
    folder_classes = sorted(found_classes)
    classes = folder_classes
    if encoding is not None:
        classes = list(encoding.categories.get("label", classes))
    _check_classes(config, folder_classes, classes)
    first = root / files["train"][0][0]
    try:
        decoder = decoder_of(config, first.read_bytes(), str(first))
    except OSError as error:
        raise DataError(f"{first} can't be read ({error.strerror}); fix or remove it") from error
    specs = {"image": decoder.spec, "label": ArraySpec((), "int32", names=tuple(classes))}
    # The order of the classes is their numbers, which a model's outputs have too.
    number_of_class = dict(zip(classes, range(len(classes)), strict=True))
    splits = {}
    for split, split_files in files.items():
        names, labels = zip(*sorted(split_files, key=_hash_of_name), strict=True)
        numbers = np.array([number_of_class[label] for label in labels], np.int32)
        splits[split] = ImageFolder(root, names, numbers, decoder, specs)
    return FullDataset(
        name=root.name,
        version="",
        splits=splits,
        digest=_digest(root, files),
        source=str(root),
        encoding=Encoding(categories={"label": tuple(classes)}),
    )


def _hash_of_name(labeled: LabeledFile) -> bytes:
    file, _ = labeled
    return hashlib.sha256(file.encode()).digest()


def _split_folders(root: Path) -> dict[str, Path]:
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
    listed: list[LabeledFile] = []
    for class_folder in sorted(folder.iterdir()):
        if _is_class_folder(class_folder):
            relative = class_folder.relative_to(root).as_posix()
            for file in _images_below(str(class_folder), relative):
                listed.append((file, class_folder.name))
    if not listed:
        problem = f"must have one folder per class, with files of type {', '.join(SUFFIXES)}"
        fix = "move the images of each class into a folder with its name"
        raise invalid("dataset.path", folder, problem=problem, fix=fix)
    return listed


def _images_below(folder: str, name: str) -> Iterator[str]:
    """Yields the image files in a folder at any depth as `<name>/...`, sorted; hidden ones are left out.

    It uses plain strings and the entries' own information: with a `Path` and a system call per file, listing took most
    of a second start's time. Links to folders are not followed, and a folder that can't be read counts as empty.
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
    unknown = sorted(set(folder_classes) - set(classes))
    if unknown:
        problem = f"has a folder {unknown[0]}, which is not a class of the run (its classes: {listed(classes)})"
        raise invalid("dataset.path", config.path, problem=problem, fix="remove the folders of other classes")
    if len(classes) < 2:
        problem = f"needs at least 2 classes, but only the folder {classes[0]} has images"
        fix = "move the images of each class into a folder with its name"
        raise invalid("dataset.path", config.path, problem=problem, fix=fix)


def _digest(root: Path, splits: Mapping[str, Sequence[LabeledFile]]) -> str:
    """Returns the sha256 (hex) of every file's split, name and size; reading millions of files would take hours."""
    total = hashlib.sha256()
    for split, files in sorted(splits.items()):
        # In the order of names: that of the split depends on their hashes, and a digest should not.
        for file, _ in sorted(files):
            size = os.stat(os.path.join(root, file)).st_size  # noqa: PTH116, PTH118 - as in `example_name`
            total.update(f"{split}\0{file}\0{size}\n".encode())
    return total.hexdigest()
