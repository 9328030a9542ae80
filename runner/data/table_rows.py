"""Sources whose rows are read alone from files, such as memory-mapped Arrow files, so they need not fit into memory.

Nothing is cached here: the system caches the pages of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.data import images
from runner.data.base import Array, ArraySpec, Rows, empty_arrays, stack_examples
from runner.errors import DataError

# The largest array that `RowSource.column` returns: 64 million class numbers, for the counts of a report.
_COLUMN_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Image files in memory, one after the other.

    Attributes:
      content: uint8, the bytes of all files.
      offsets: int64 (N + 1,), where each file starts and ends.
    """

    content: Array
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        """Returns one file."""
        return self.content[self.offsets[index] : self.offsets[index + 1]].tobytes()


# Some rows of a table: arrays (n, ...) by name, and columns of images, which are decoded one at a time.
Block = Mapping[str, Array | EncodedImages]


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Returns blocks of the same columns as one, in their order; at least one."""
    if len(blocks) == 1:
        return blocks[0]
    joined: dict[str, Array | EncodedImages] = {}
    for name in blocks[0]:
        arrays = []
        images_of_blocks = []
        for block in blocks:
            column = block[name]
            if isinstance(column, EncodedImages):
                images_of_blocks.append(column)
            else:
                arrays.append(column)
        if arrays:
            joined[name] = np.concatenate(arrays)
        else:
            joined[name] = _join_images(images_of_blocks)
    return joined


def _join_images(columns: Sequence[EncodedImages]) -> EncodedImages:
    offsets = [np.zeros(1, np.int64)]
    for column in columns:
        offsets.append(offsets[-1][-1] + column.offsets[1:])
    return EncodedImages(np.concatenate([column.content for column in columns]), np.concatenate(offsets))


@dataclass(frozen=True, eq=False)
class ImageDecoder:
    """Decodes and resizes the images of a column.

    Attributes:
      size: height and width.
      channels: 1, 3 or 4.
    """

    size: tuple[int, int]
    channels: int

    def original(self, data: bytes) -> Array:
        """Returns an image in its own size.

        Raises:
          ValueError: it can't be decoded.
        """
        return images.decode(data, self.channels)

    def resized(self, data: bytes) -> Array:
        """Returns an image in the size of the dataset.

        Raises:
          ValueError: it can't be decoded.
        """
        return images.resize(self.original(data), self.size)


@dataclass(frozen=True, eq=False)
class RowSource:
    """Examples that are rows of files.

    Attributes:
      specs: of the arrays.
      size: number of examples.
      read_rows: returns some rows, sorted and each once, as a block: all columns, or the one that is named.
      place: returns the name of an example for messages, by its row.
    """

    specs: Mapping[str, ArraySpec]
    size: int
    read_rows: Callable[[Rows, str | None], Block]
    place: Callable[[int], str]

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples, read in the order of the files."""
        if not len(rows):
            return empty_arrays(self.specs, 0)
        sorted_rows, positions = np.unique(rows, return_inverse=True)
        examples: dict[str, Array] = {}
        for name, column in self.read_rows(sorted_rows, None).items():
            assert not isinstance(column, EncodedImages), "images have a source of their own"
            examples[name] = column[positions]
        return examples

    def column(self, name: str) -> Array | None:
        """Returns one complete array, or None if it is large or has images."""
        spec = self.specs[name]
        if spec.is_image or self.size * spec.bytes > _COLUMN_BYTES:
            return None
        whole = self.read_rows(np.arange(self.size), name)[name]
        assert not isinstance(whole, EncodedImages), "images were excluded above"
        return whole


@dataclass(frozen=True, eq=False)
class ImageRowSource(RowSource):
    """Rows with encoded images. Workers decode the images of one example at a time.

    Attributes:
      decoders: of the columns of images.
    """

    decoders: Mapping[str, ImageDecoder]

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples."""
        return stack_examples(self.specs, rows, self.example)

    def example_name(self, row: int) -> str:
        """Returns the example's name for messages."""
        return self.place(row)

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of one example.

        Raises:
          DataError: an image can't be decoded.
        """
        del epoch
        return self._decode(row, ImageDecoder.resized)

    def original(self, row: int) -> dict[str, Array]:
        """Returns the arrays of one example, whose images have their own size.

        Raises:
          DataError: an image can't be decoded.
        """
        return self._decode(row, ImageDecoder.original)

    def _decode(self, row: int, decode: Callable[[ImageDecoder, bytes], Array]) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for name, column in self.read_rows(np.array([row]), None).items():
            if not isinstance(column, EncodedImages):
                arrays[name] = column[0]
                continue
            try:
                arrays[name] = decode(self.decoders[name], column[0])
            except ValueError as error:
                raise DataError(
                    f"{self.example_name(row)}: the image {name} can't be decoded ({error}); fix or remove that row"
                ) from error
        return arrays
