# ruff: noqa: D102 - a source overrides what DataSource documents
"""Sequence packing of texts: one stream that is cut at a fixed length, with document masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from runner.data.base import Array, ArraySpec, DataSource, Rows

TOKENS = "tokens"
LABEL = "label"
SEGMENTS = "segments"
POSITIONS = "positions"
LABEL_WEIGHT = "label_weight"
# Dims of these arrays. A dataset's own arrays of the same names have dims without names.
_DIMS = ("sequence",)
# Sequences of up to 256 MiB are made once and kept as arrays, which an engine may in turn keep on its devices. Larger
# splits are cut from the memory-mapped stream batch by batch.
RAM_BYTES = 1 << 28
# Sequences per call while those arrays are filled; bounds the temporary arrays of `read`.
ROWS_PER_READ = 1 << 12


def specs(length: int, *, apart: bool) -> dict[str, ArraySpec]:
    """Returns `tokens`, `label` (the next token) and, with `apart`, the document masks, each (length,).

    The masks are `segments`, the document within the sequence from 1 (0: padding), and `label_weight`, 1 if the label
    is in the same document.
    """
    integers = ArraySpec((length,), "int32", _DIMS)
    arrays = {TOKENS: integers, LABEL: integers}
    if apart:
        arrays[SEGMENTS] = integers
        arrays[LABEL_WEIGHT] = ArraySpec((length,), "float32", _DIMS)
    return arrays


@dataclass(frozen=True, eq=False)
class PackedSequences(DataSource):
    """Concatenated documents, cut every `length` tokens.

    `stream` has the tokens of all documents, `starts` the first of each. With `apart` the remainder at the end becomes
    a padded sequence; else it is dropped, because nothing could mark the padding.
    """

    stream: Array
    starts: Array
    length: int
    apart: bool

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return specs(self.length, apart=self.apart)

    @property
    def size(self) -> int:
        # The last token of the stream is an input of no sequence, because it has no next token.
        inputs = len(self.stream) - 1
        if self.apart:
            return -(-inputs // self.length)
        return inputs // self.length

    def read(self, rows: Rows) -> dict[str, Array]:
        first_tokens = np.asarray(rows, np.int64) * self.length
        # T + 1 tokens per sequence: the inputs, and one more for the label of the last input.
        positions = first_tokens[:, None] + np.arange(self.length + 1)
        # With documents apart, the last window reaches beyond the stream. `is_token` sets what is clipped to 0.
        window = np.asarray(self.stream[np.minimum(positions, len(self.stream) - 1)], np.int32)
        if not self.apart:
            return {TOKENS: window[:, :-1].copy(), LABEL: window[:, 1:].copy()}
        is_start = self._document_starts(first_tokens)
        is_token = positions < len(self.stream)
        tokens = window[:, :-1] * is_token[:, :-1]
        label = window[:, 1:] * is_token[:, 1:]
        # The label of a document's last token would be the first token of the next document.
        has_label = is_token[:, 1:] & ~is_start[:, 1:]
        # Segments count from 1 in every sequence, also if its first token continues a document.
        is_start[:, 0] = True
        segments = np.cumsum(is_start[:, :-1], axis=1, dtype=np.int32) * is_token[:, :-1]
        return {TOKENS: tokens, LABEL: label, SEGMENTS: segments, LABEL_WEIGHT: has_label.astype(np.float32)}

    def _document_starts(self, first_tokens: Rows) -> Array:
        """Returns bool (n, T + 1), true at the first token of each document."""
        first_document = np.searchsorted(self.starts, first_tokens)
        stop_document = np.searchsorted(self.starts, first_tokens + self.length + 1)
        counts = stop_document - first_document
        # One entry per document start in any of the windows: its window, and its index in `starts`.
        window = np.repeat(np.arange(len(first_tokens)), counts)
        index_in_window = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        document = index_in_window + first_document[window]
        is_start = np.zeros((len(first_tokens), self.length + 1), np.bool_)
        is_start[window, np.asarray(self.starts[document]) - first_tokens[window]] = True
        return is_start
