"""Sources that are stored in blocks of examples, such as the row groups of a Parquet file.

A block is decoded when one of its examples is read. A cache of bounded size keeps the blocks that were used last, so
the data need not fit into memory.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from runner.data import images
from runner.data.base import Array, ArraySpec, Rows, empty_arrays, stack_examples
from runner.data.sampler import StoredBlocks
from runner.errors import DataError

# The largest array that `BlockSource.column` returns: 64 million class numbers, for the counts of a report.
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

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.content.nbytes + self.offsets.nbytes


# A decoded block: arrays (n, ...) by name, and columns of images, which are decoded one at a time.
Block = Mapping[str, Array | EncodedImages]


def block_bytes(block: Block) -> int:
    """Returns the bytes of a decoded block."""
    return sum(column.nbytes for column in block.values())


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


class BlockCache:
    """The decoded blocks that were used last, of all splits of a dataset.

    Together they have at most `max_bytes`, or are one block. One more block is in memory while it is decoded: threads
    that need different blocks take turns.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[object, Block] = OrderedDict()
        self._bytes = 0
        # Guards the two above.
        self._lock = threading.Lock()
        # Held while a block is decoded.
        self._decoding = threading.Lock()

    def __reduce__(self) -> tuple[type[BlockCache], tuple[int]]:
        """Returns the cache without its blocks, for another process."""
        return BlockCache, (self._max_bytes,)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._blocks

    def get(self, key: object, decode: Callable[[], Block]) -> Block:
        """Returns a block, which is decoded first if the cache does not have it.

        Args:
          key: of the block.
          decode: decodes it.
        """
        block = self._used(key)
        if block is not None:
            return block
        with self._decoding:
            # Another thread may have decoded it while this one waited.
            block = self._used(key)
            if block is None:
                block = decode()
                self._add(key, block)
        return block

    def _used(self, key: object) -> Block | None:
        """Returns a block of the cache, and marks it as used last."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def _add(self, key: object, block: Block) -> None:
        with self._lock:
            self._blocks[key] = block
            self._bytes += block_bytes(block)
            while self._bytes > self._max_bytes and len(self._blocks) > 1:
                _, oldest = self._blocks.popitem(last=False)
                self._bytes -= block_bytes(oldest)


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
class ImageExamples(ABC):
    """What sources with encoded images have in common: workers decode the images of one example at a time.

    Attributes:
      decoders: of the columns of images.
    """

    decoders: Mapping[str, ImageDecoder] = field(default_factory=dict)

    @abstractmethod
    def example_name(self, row: int) -> str:
        """Returns the example's name for messages."""

    @abstractmethod
    def _block_with(self, row: int) -> tuple[Block, int]:
        """Returns a block that has a row, and the row's position there."""

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of one example.

        Raises:
          DataError: an image can't be decoded.
        """
        del epoch
        return self._decode(*self._block_with(row), row, ImageDecoder.resized)

    def original(self, row: int) -> dict[str, Array]:
        """Returns the arrays of one example, whose images have their own size.

        Raises:
          DataError: an image can't be decoded.
        """
        return self._decode(*self._block_with(row), row, ImageDecoder.original)

    def _decode(
        self, block: Block, row_in_block: int, row: int, decode: Callable[[ImageDecoder, bytes], Array]
    ) -> dict[str, Array]:
        """Returns the arrays of one example.

        Args:
          block: has the row.
          row_in_block: its position there.
          row: of the source, for errors.
          decode: `ImageDecoder.resized` or `ImageDecoder.original`.

        Raises:
          DataError: an image can't be decoded.
        """
        arrays: dict[str, Array] = {}
        for name, column in block.items():
            if not isinstance(column, EncodedImages):
                arrays[name] = column[row_in_block]
                continue
            try:
                arrays[name] = decode(self.decoders[name], column[row_in_block])
            except ValueError as error:
                raise DataError(
                    f"{self.example_name(row)}: the image {name} can't be decoded ({error}); fix or remove that row"
                ) from error
        return arrays


@dataclass(frozen=True, eq=False)
class BlockSource:
    """Examples that are stored in blocks.

    Attributes:
      specs: of the arrays.
      lengths: examples of each block, at least one.
      decode_block: returns a block by its number: all columns, or the one that is named.
      place: returns the name of an example for messages, by its block and its row there.
      cache: of decoded blocks; splits may share one.
      name: of the split, which distinguishes its blocks in the cache.
      window: blocks that are shuffled together; None: all.
    """

    specs: Mapping[str, ArraySpec]
    lengths: Sequence[int]
    decode_block: Callable[[int, str | None], Block]
    place: Callable[[int, int], str]
    cache: BlockCache
    name: str
    window: int | None = None

    @cached_property
    def _starts(self) -> Rows:
        """First row of each block, and the number of examples."""
        return np.cumsum([0, *self.lengths])

    @property
    def size(self) -> int:
        """Number of examples."""
        return int(self._starts[-1])

    def stored_blocks(self, rows: Rows) -> StoredBlocks:
        """Returns the blocks of some rows."""
        return StoredBlocks(self._block_of(rows), len(self.lengths), self.window)

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples; each block is decoded at most once."""
        arrays = empty_arrays(self.specs, len(rows))
        if not len(rows):
            return arrays
        blocks = self._block_of(rows)
        # The positions of each block's rows. One sort takes less time than a comparison per block.
        by_block = np.argsort(blocks, kind="stable")
        starts = np.flatnonzero(np.diff(blocks[by_block], prepend=-1))
        positions_of = {int(blocks[part[0]]): part for part in np.split(by_block, starts[1:])}
        # The cached blocks first, so that decoding the others does not drop one that is needed.
        for number in sorted(positions_of, key=lambda number: (self.name, number) not in self.cache):
            positions = positions_of[number]
            self._copy(number, rows[positions] - self._starts[number], arrays, positions)
        return arrays

    def column(self, name: str) -> Array | None:
        """Returns one complete array, or None if it is large or has images."""
        spec = self.specs[name]
        if spec.is_image or self.size * spec.bytes > _COLUMN_BYTES:
            return None
        whole = np.empty((self.size, *spec.shape), spec.dtype)
        for number in range(len(self.lengths)):
            rows = slice(self._starts[number], self._starts[number + 1])
            whole[rows] = self.decode_block(number, name)[name]
        return whole

    def _copy(self, number: int, rows: Rows, arrays: Mapping[str, Array], positions: Rows) -> None:
        """Writes rows of a block to positions of arrays."""
        block = self._block(number)
        for name, column in block.items():
            assert not isinstance(column, EncodedImages), "images have a source of their own"
            arrays[name][positions] = column[rows]

    def _block_of(self, rows: Rows) -> Rows:
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _block(self, number: int) -> Block:
        return self.cache.get((self.name, number), lambda: self.decode_block(number, None))


@dataclass(frozen=True, eq=False)
class ImageBlockSource(ImageExamples, BlockSource):
    """Blocks with encoded images."""

    def example_name(self, row: int) -> str:
        """Returns the example's name for messages."""
        return self.place(*self._locate(row))

    def _block_with(self, row: int) -> tuple[Block, int]:
        number, row_in_block = self._locate(row)
        return self._block(number), row_in_block

    def _locate(self, row: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return number, int(row - self._starts[number])

    def _copy(self, number: int, rows: Rows, arrays: Mapping[str, Array], positions: Rows) -> None:
        block = self._block(number)
        for row_in_block, position in zip(rows.tolist(), positions.tolist(), strict=True):
            row = row_in_block + int(self._starts[number])
            example = self._decode(block, row_in_block, row, ImageDecoder.resized)
            for name, array in example.items():
                arrays[name][position] = array


@dataclass(frozen=True, eq=False)
class RowSource:
    """Examples of a format whose rows can be read alone, such as memory-mapped Arrow files.

    Nothing is cached here: the system caches the pages of the files.

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
class ImageRowSource(ImageExamples, RowSource):
    """Rows with encoded images."""

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples."""
        return stack_examples(self.specs, rows, self.example)

    def example_name(self, row: int) -> str:
        """Returns the example's name for messages."""
        return self.place(row)

    def _block_with(self, row: int) -> tuple[Block, int]:
        return self.read_rows(np.array([row]), None), 0
