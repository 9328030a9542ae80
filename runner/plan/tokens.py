"""FLOPs of a language model's training step, and the peak rate of known GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

from runner.cluster.accelerators import GPU, find
from runner.config.schema import PlanConfig
from runner.engine.mappings import map_values
from runner.layout import transformers
from runner.layout.roles import Role
from runner.layout.transformers import VOCABULARY

# TFLOP/s of one GPU in dense bfloat16, from NVIDIA's data sheets (A100; H100 and H200, SXM and PCIe). The first entry
# whose words are in the GPU's name counts.
_BFLOAT16 = (("H200", 989.4), ("H100 PCIe", 756.0), ("H100", 989.4), ("A100", 312.0))
_QUERY = re.compile(r"(^|/)query(_dense)?/kernel$")
_ADAPTER = re.compile(r"/lora_\w+$")
_TABLE = re.compile(r"(^|/)(\w*embeddings?|embedding\w*)(/embeddings|/position_embeddings)?$")
# FLOPs per parameter and token: two forward, two for the input's gradient, two for the parameter's own gradient, which
# a frozen parameter does not have.
_TRAINED = 6.0
_FROZEN = 4.0
# FLOPs per token, position and unit of attention: scores and their product with the values, forward and backward.
_ATTENTION = 12.0


def peak_gflops(plan: PlanConfig, kind: str, precision: str) -> float | None:
    """Returns the peak rate of one device of a kind in 1e9 operations per second, if it is known.

    It is `plan.gflops`, else the data sheet's rate of a known GPU in bfloat16.
    """
    if plan.gflops or kind != GPU or precision != "bfloat16":
        return plan.gflops
    name = find(GPU).model
    for words, teraflops in _BFLOAT16:
        if words in name:
            return 1000.0 * teraflops
    return None


def step_flops(
    shapes: Mapping[str, Sequence[int]],
    trained: Collection[str],
    tokens: int,
    length: int,
    vocabulary: int,
    used_experts: float = 1.0,
) -> float:
    """Returns the FLOPs of a step's forward and backward pass on all devices, without recomputation.

    Six per parameter and token, without tables that are only looked up, and twelve per token, position and unit of
    attention (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B). A table that is tied to the head counts as the
    head. A frozen parameter counts four. One before the first trained parameter needs only two; it counts four too.

    Args:
      tokens: per step.
      length: of a row, T.
      vocabulary: its size, V.
      used_experts: share of a mixture's experts that a token uses. The others are computed for nothing.
    """
    roles = transformers.read(map_values(tuple, shapes)).roles
    sizes = map_values(math.prod, shapes)
    counted: set[str] = set()
    has_head = False
    # Tables that could be tied to the head.
    tied: set[str] = set()
    for path, shape in shapes.items():
        # KerasHub's reverse embeddings are heads: they are multiplied with every token.
        if not _TABLE.search(path) or "reverse" in path:
            counted.add(path)
            has_head = has_head or _is_head(path, shape, roles.get(path), vocabulary)
        elif list(shape[:1]) == [vocabulary]:
            tied.add(path)
    if tied and not has_head:
        # A table that is known as part of the transformer, and of several the largest.
        counted.add(max(tied, key=lambda path: (path in roles, sizes[path])))
    per_token = 0.0
    for path in counted:
        flops = _FROZEN
        if path in trained:
            flops = _TRAINED
        role = roles.get(path)
        if role is not None and role.experts is not None:
            flops *= used_experts
        per_token += sizes[path] * flops
    attention_units = 0
    for path, size in sizes.items():
        if _QUERY.search(path):
            attention_units += size // _input_features(shapes[path], roles.get(path))
    return tokens * (per_token + _ATTENTION * length * attention_units)


def _is_head(path: str, shape: Sequence[int], role: Role | None, vocabulary: int) -> bool:
    """Returns whether a matrix (D, V) is the head: another part of a transformer may have the width V too."""
    is_other_part = role is not None and role.noun != VOCABULARY
    is_matrix = len(shape) == 2 and shape[1] == vocabulary
    return is_matrix and not is_other_part and not _ADAPTER.search(path)


def _input_features(shape: Sequence[int], role: Role | None) -> int:
    """Returns D of a query's kernel (D, H, K), (L, D, H, K) or (D, H K), by its role, else by shape."""
    if role is not None and role.width is not None:
        return shape[role.width]
    if len(shape) >= 3:
        return shape[-3]
    return shape[0]
