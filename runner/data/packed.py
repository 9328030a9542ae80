"""Sequences of a fixed length, cut out of one long run of tokens that may lie on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array, ArraySource, ArraySpec, Rows
from runner.data.checks_text import END_TOKEN
from runner.errors import ConfigError, invalid

TOKENS = "tokens"
LABEL = "label"
SEGMENTS = "segments"
LABEL_WEIGHT = "label_weight"
_SEQUENCE = ("sequence",)
_RAM_BYTES = 1 << 28  # of sequences that are held as arrays, which devices may keep
_ROWS = 1 << 12  # that are made at once


def specs(length: int, *, apart: bool) -> dict[str, ArraySpec]:
    """Returns what an example has: `tokens` and `label`, the next token of each, and of documents kept apart more.

    Args:
      length: T, of a sequence.
      apart: adds `segments`, the document within the sequence from 1 (0: padding), and `label_weight`, 1 where the
        label is of the same document.
    """
    found = {name: ArraySpec((length,), "int32", _SEQUENCE) for name in (TOKENS, LABEL)}
    if apart:
        found |= {
            SEGMENTS: ArraySpec((length,), "int32", _SEQUENCE),
            LABEL_WEIGHT: ArraySpec((length,), "float32", _SEQUENCE),
        }
    return found


def no_label_counts(split: str) -> ConfigError:
    """Returns the refusal of a split whose documents, kept apart, have one token each: none has a next one."""
    return invalid(
        "dataset.documents",
        "apart",
        problem=f"a label that counts, and split {split} has none: every document has one token",
        fix=f"set dataset.documents=joined, or {END_TOKEN}",
    )


@dataclass(frozen=True, eq=False)
class Packed:
    """Documents behind one another, cut every T tokens.

    Attributes:
      stream: tokens (n,) of all documents.
      starts: int64 (documents,), where each begins; the first at 0, none of them empty.
      length: T, of a sequence.
      apart: whether sequences tell documents apart; see `specs`. Where they do, what is left over at the end is a
        sequence that is padded; else it is left out, as there is nothing to tell padding by.
    """

    stream: Array
    starts: Array
    length: int
    apart: bool

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        """Specs of the arrays."""
        return specs(self.length, apart=self.apart)

    @property
    def size(self) -> int:
        """Number of sequences; the last token is nobody's input, as nothing follows it."""
        pairs = len(self.stream) - 1
        return -(-pairs // self.length) if self.apart else pairs // self.length

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some sequences, each (len(rows), T)."""
        begins = np.asarray(rows, np.int64) * self.length
        places = begins[:, None] + np.arange(self.length + 1)
        found = np.asarray(self.stream[np.minimum(places, len(self.stream) - 1)], np.int32)
        if not self.apart:
            return {TOKENS: found[:, :-1].copy(), LABEL: found[:, 1:].copy()}
        begun = self._begun(begins)
        within = places < len(self.stream)
        counted = within[:, 1:] & ~begun[:, 1:]
        tokens = found[:, :-1] * within[:, :-1]
        label = found[:, 1:] * within[:, 1:]
        # A row whose first token begins a document counts that as its first one, as any other row does.
        begun[:, 0] = True
        segments = np.cumsum(begun[:, :-1], axis=1, dtype=np.int32) * within[:, :-1]
        return {TOKENS: tokens, LABEL: label, SEGMENTS: segments, LABEL_WEIGHT: counted.astype(np.float32)}

    def _begun(self, begins: Rows) -> Array:
        """Returns bool (n, T + 1), where a document begins."""
        first = np.searchsorted(self.starts, begins)
        stop = np.searchsorted(self.starts, begins + self.length + 1)
        counts = stop - first
        row = np.repeat(np.arange(len(begins)), counts)
        which = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[row]
        begun = np.zeros((len(begins), self.length + 1), np.bool_)
        begun[row, np.asarray(self.starts[which]) - begins[row]] = True
        return begun

    def in_memory(self) -> ArraySource | Packed:
        """Returns the sequences as arrays where they are few, and else itself."""
        if sum(one.bytes for one in self.specs.values()) * self.size > _RAM_BYTES:
            return self
        arrays = {name: np.empty((self.size, *one.shape), one.dtype) for name, one in self.specs.items()}
        for start in range(0, self.size, _ROWS):
            rows = np.arange(start, min(start + _ROWS, self.size))
            for name, made in self.read(rows).items():
                arrays[name][rows] = made
        return ArraySource(arrays, self.specs)
