"""The operations of a language model's training step, and what of a GPU's peak they take."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from runner import mesh
from runner.config.schema import RunConfig
from runner.host.accelerators import GPU, find

# TFLOP/s of one GPU in bfloat16, dense, of NVIDIA's data sheets (A100; H100 and H200, SXM and PCIe); the first whose
# words are in the model's name.
_BFLOAT16 = (("H200", 989.4), ("H100 PCIe", 756.0), ("H100", 989.4), ("A100", 312.0))
_QUERY = re.compile(r"(^|/)query(_dense)?/kernel$")
_TABLE = re.compile(r"(^|/)(\w*embeddings?|embedding\w*)(/embeddings|/position_embeddings)?$")


def peak_gflops(config: RunConfig) -> float | None:
    """Returns 1e9 operations a second that one device is said to reach; None where nothing is said.

    It is `plan.gflops`, else what the maker states of a known GPU in bfloat16.
    """
    if config.plan.gflops or mesh.device_kind(config.mesh) != GPU or config.engine.precision != "bfloat16":
        return config.plan.gflops
    name = find(GPU).model
    return next((1000.0 * peak for words, peak in _BFLOAT16 if words in name), None)


def step_flops(shapes: Mapping[str, Sequence[int]], tokens: int, length: int, vocabulary: int) -> float:
    """Returns the operations of a step of all devices, forward and backward, nothing computed again.

    Six a parameter and token, but of tables that are only looked up, and twelve a token, place and unit of attention
    (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B). A table that is also the head counts as the head.

    Args:
      shapes: of the trainable variables, by canonical path.
      tokens: of a step.
      length: of a row, T.
      vocabulary: size of it, V.
    """
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    tables = {path for path in shapes if _TABLE.search(path) and "reverse" not in path}
    counted = sum(size for path, size in sizes.items() if path not in tables)
    has_head = any(path not in tables and vocabulary in shape[-2:] for path, shape in _matrices(shapes))
    if not has_head:
        counted += max((sizes[path] for path in tables if vocabulary in shapes[path]), default=0)
    heads = sum(size // _features(shapes[path]) for path, size in sizes.items() if _QUERY.search(path))
    return tokens * (6.0 * counted + 12.0 * length * heads)


def _matrices(shapes: Mapping[str, Sequence[int]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(path, tuple(shape)) for path, shape in shapes.items() if len(shape) >= 2]


def _features(shape: Sequence[int]) -> int:
    """Returns the features that a query's kernel takes: of (D, H, K), of (L, D, H, K), and of (D, H K)."""
    return shape[-3] if len(shape) >= 3 else shape[0]
