"""The operations of a language model's training step, and what of a GPU's peak they take."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

from runner.config.schema import RunConfig
from runner.host.accelerators import GPU, find
from runner.layout import mesh, transformers
from runner.layout.roles import Role
from runner.layout.transformers import VOCABULARY

# TFLOP/s of one GPU in bfloat16, dense, of NVIDIA's data sheets (A100; H100 and H200, SXM and PCIe); the first whose
# words are in the model's name.
_BFLOAT16 = (("H200", 989.4), ("H100 PCIe", 756.0), ("H100", 989.4), ("A100", 312.0))
_QUERY = re.compile(r"(^|/)query(_dense)?/kernel$")
_ADAPTER = re.compile(r"/lora_\w+$")
_TABLE = re.compile(r"(^|/)(\w*embeddings?|embedding\w*)(/embeddings|/position_embeddings)?$")


def peak_gflops(config: RunConfig) -> float | None:
    """Returns 1e9 operations a second that one device is said to reach; None where nothing is said.

    It is `plan.gflops`, else what the maker states of a known GPU in bfloat16.
    """
    if config.plan.gflops or mesh.device_kind(config.mesh) != GPU or config.engine.precision != "bfloat16":
        return config.plan.gflops
    name = find(GPU).model
    return next((1000.0 * peak for words, peak in _BFLOAT16 if words in name), None)


def step_flops(
    shapes: Mapping[str, Sequence[int]], trained: Collection[str], tokens: int, length: int, vocabulary: int
) -> float:
    """Returns the operations of a step of all devices, forward and backward, nothing computed again.

    Six a parameter and token, but of tables that are only looked up, and twelve a token, place and unit of attention
    (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B). A table that is also the head counts as the head. A frozen
    parameter has no gradient of its own, and so four; what lies before the first trained one has two, and four here.

    Args:
      shapes: of the variables, by canonical path.
      trained: paths of those that are trained.
      tokens: of a step.
      length: of a row, T.
      vocabulary: size of it, V.
    """
    roles = transformers.read({path: tuple(shape) for path, shape in shapes.items()}).roles
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    tables = {path for path in shapes if _TABLE.search(path) and "reverse" not in path}
    counted = shapes.keys() - tables
    if not any(_is_head(path, shapes[path], roles.get(path), vocabulary) for path in counted):
        tied = [path for path in tables if shapes[path][0] == vocabulary]
        counted |= {max(tied, key=lambda path: (path in roles, sizes[path]))} if tied else set()
    weights = sum(sizes[path] * (6.0 if path in trained else 4.0) for path in counted)
    heads = sum(
        size // _features(shapes[path], roles.get(path)) for path, size in sizes.items() if _QUERY.search(path)
    )
    return tokens * (weights + 12.0 * length * heads)


def _is_head(path: str, shape: Sequence[int], role: Role | None, vocabulary: int) -> bool:
    """Tells a matrix (D, V) that is no other part of a transformer, whose width may be V too."""
    of_another = role is not None and role.noun != VOCABULARY
    return len(shape) == 2 and shape[1] == vocabulary and not of_another and not _ADAPTER.search(path)


def _features(shape: Sequence[int], role: Role | None) -> int:
    """Returns the features that a query's kernel takes, by its role; else of (D, H, K), (L, D, H, K) and (D, H K)."""
    if role is not None and role.width is not None:
        return shape[role.width]
    return shape[-3] if len(shape) >= 3 else shape[0]
