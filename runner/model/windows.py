"""Sliding-window attention: which blocks of a transformer are local, and which keys their queries are compared with.

Beltagy et al., Longformer (arXiv:2004.05150). Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# Path of the layer that holds all blocks of a scan.
SCANNED = "blocks"

# Chunks of a row that are computed one after the other. Each is compiled by itself, so more would be slow to compile.
_MOST_CHUNKS = 16


class Chunk(NamedTuple):
    """Consecutive queries of a row, and the keys that they are compared with; `stop` is the end of both."""

    start: int
    stop: int
    first_key: int


def is_local(index: int, window: int | None, global_every: int | None) -> bool:
    """Returns whether the tokens of a block attend to those of a window only; None: no window, or no global block.

    >>> [is_local(index, 4096, 2) for index in range(4)]
    [True, False, True, False]
    """
    if window is None:
        return False
    return global_every is None or (index + 1) % global_every != 0


def chunks(tokens: int, window: int) -> list[Chunk]:
    """Returns the chunks in which a row's local attention is computed.

    A chunk has as many queries as a window has tokens, so that its keys are those of two windows.

    >>> [tuple(chunk) for chunk in chunks(10, 4)]
    [(0, 4, 0), (4, 8, 0), (8, 10, 4)]
    """
    size = max(window, -(-tokens // _MOST_CHUNKS))
    # With a mask, cuDNN's fused attention takes even numbers of queries and of keys.
    size += size % 2
    reach = window + window % 2
    found = []
    for start in range(0, tokens, size):
        found.append(Chunk(start, min(start + size, tokens), max(0, start - reach)))
    return found


def share(tokens: int, window: int) -> float:
    """Returns the products of queries and keys in a local block, as a share of all that a row has.

    >>> share(8192, 4096)
    0.75
    """
    if window >= tokens:
        return 1.0
    products = 0
    for chunk in chunks(tokens, window):
        products += (chunk.stop - chunk.start) * (chunk.stop - chunk.first_key)
    return products / tokens**2


def shares(options: Mapping[str, Any], tokens: int) -> dict[str, float]:
    """Returns the path of a layer that holds attention -> the share of its products that local blocks compute."""
    window = int(options["window"])
    depth = int(options["depth"])
    by_layer = {}
    total = 0.0
    for index in range(depth):
        block_share = 1.0
        if is_local(index, window, options.get("global_every")):
            block_share = share(tokens, window)
        # With activation checkpointing, only the block is known as a layer.
        by_layer[f"block_{index}"] = block_share
        by_layer[f"block_{index}/attention/mix"] = block_share
        total += block_share
    by_layer[SCANNED] = total / depth
    return by_layer
