"""Recognizes a transformer by paths and shapes, whatever its layers are called, and shards it over mesh axes.

As in Megatron-LM (arXiv:1909.08053), attention is sharded by heads, feed-forwards by hidden units (column then row),
embeddings and heads by vocabulary. A mixture's experts are sharded over the axis `experts` if the mesh has it (GShard,
arXiv:2006.16668). LoRA kernels are sharded like the adapted kernel. Position embeddings, norms and routers have no
role.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from runner.layout.attention import attentions
from runner.layout.feedforward import alone, beside, experts
from runner.layout.roles import Layer, Role, ancestors, layers, words_of
from runner.layout.specs import Shape, Spec, replicated, shard_spec

# Noun of the roles of embedding tables and of heads.
VOCABULARY = "tokens of the vocabulary"
# The mesh axis that shards experts, and nothing else.
EXPERTS = "experts"

_TABLE_VARIABLES = ("embeddings", "embedding")
# Beginnings of words in the names of layers that embed tokens.
_TOKEN_WORDS = ("embed", "token", "word", "vocab")
# Words in the names of layers whose table is not of tokens.
_OTHER_TABLES = {"position", "positional", "positions", "pos", "segment", "type", "relative", "rel", "class", "mask"}
_NORM_NAME = re.compile(r"norm|(^|_)ln(_|\d|$)")


@dataclass(frozen=True)
class Structure:
    """Recognized parts of a model.

    Attributes:
      roles: path of a variable to its role; a variable without one is replicated.
      stacked: paths of variables whose dim 0 counts the layers of a scan.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)
    stacked: frozenset[str] = frozenset()


def read(variables: Mapping[str, Shape]) -> Structure:
    """Returns the parts that paths and shapes indicate.

    Args:
      variables: canonical path to shape, in the model's order.
    """
    stacked = _stacked(variables)
    unstacked = {path: shape[1:] if path in stacked else shape for path, shape in variables.items()}
    all_layers = layers(unstacked)
    # Dicts keep the model's order: the first width is the most plausible.
    norms = dict.fromkeys(shape[0] for path, shape in unstacked.items() if len(shape) == 1 and _is_norm(path))
    recognized = list(attentions(all_layers, unstacked, norms))
    widths = dict.fromkeys(attention.width for attention in recognized)
    roles: dict[str, Role] = {}
    for attention in recognized:
        roles |= attention.roles
    roles |= experts(unstacked, widths or norms)
    dense = [layer for layer in all_layers if layer.kernel not in roles and len(layer.shape) == 2]
    owners = [(attention.owner, attention.width) for attention in recognized]
    dense_below = _dense_below(dense, [owner for owner, _ in owners])
    # A role that is known already wins.
    roles = beside(owners, dense_below) | roles
    roles = alone(_without_role(dense, roles), widths | norms) | roles
    if roles:
        roles |= _vocabulary(unstacked, _without_role(dense, roles))
    roles |= _adapters(unstacked, roles)
    return Structure({path: role.below_stack() if path in stacked else role for path, role in roles.items()}, stacked)


def _without_role(candidates: Iterable[Layer], roles: Mapping[str, Role]) -> list[Layer]:
    return [layer for layer in candidates if layer.kernel not in roles]


def place(role: Role, shape: Shape, axis: str, axes: Mapping[str, int], store: str | None = None) -> tuple[Spec, str]:
    """Shards a variable over the axis of its units, over `experts`, and over the axis of FSDP.

    Args:
      role: of the variable.
      shape: of the whole variable.
      axis: shards heads, hidden units and vocabulary; `experts` shards a mixture's experts only.
      axes: mesh axis to size.
      store: the axis of FSDP, which shards the model width or else another dim; devices gather it where they use the
        variable. None: no FSDP.

    Returns:
      The spec, and its reason in one line.
    """
    spec: list[str | None] = list(replicated(shape))
    reasons = []
    if role.experts is not None and axes.get(EXPERTS, 1) > 1:
        count = shape[role.experts]
        if count % axes[EXPERTS] == 0:
            spec[role.experts] = EXPERTS
            reasons.append(f"{count} experts of {role.owner}, {EXPERTS} divides them")
        else:
            reasons.append(f"{EXPERTS} of size {axes[EXPERTS]} does not divide the {count} experts of {role.owner}")
    if axis != EXPERTS and role.dim is None:
        reasons.append(role.why_replicated)
    elif axis != EXPERTS and role.dim is not None and spec[role.dim] is None:
        pronoun = "it" if role.units == 1 else "them"
        # The dim has several elements per unit if it counts the columns of all heads.
        if role.units % axes[axis] == 0 and shape[role.dim] % axes[axis] == 0:
            spec[role.dim] = axis
            reasons.append(f"{role.description}, {axis} divides {pronoun}")
        else:
            reasons.append(f"{role.description}, {axis} of size {axes[axis]} does not divide {pronoun}")
    if store is not None and axes[store] > 1 and store not in spec:
        fsdp_dim = _fsdp_dim(role, shape, store, axes[store], spec)
        if fsdp_dim is not None:
            spec[fsdp_dim] = store
            reasons.append(f"dim {fsdp_dim} ({shape[fsdp_dim]}) over {store} (FSDP)")
    return tuple(spec), "; ".join(reasons)


def _fsdp_dim(role: Role, shape: Shape, axis: str, size: int, spec: list[str | None]) -> int | None:
    """Returns the dim that FSDP shards: the model width if the axis divides it, else the largest free dim."""
    if role.width is None:
        return None
    if spec[role.width] is None and shape[role.width] % size == 0:
        return role.width
    # A dim that is sharded already counts as 1, which the axis does not divide.
    free_shape = tuple(1 if spec[dim] else size_of_dim for dim, size_of_dim in enumerate(shape))
    fsdp_spec = shard_spec(free_shape, axis, size, first=role.stacked)
    return fsdp_spec.index(axis) if axis in fsdp_spec else None


def _stacked(variables: Mapping[str, Shape]) -> frozenset[str]:
    """Returns the variables of stacked layers.

    These are all below one path, have the same first dim, and are a norm and a nested kernel at least.
    """
    below: dict[str, list[str]] = {}
    for path in variables:
        for owner in ancestors(path):
            below.setdefault(owner, []).append(path)
    stacked: set[str] = set()
    for owner, paths in below.items():
        # A variable of one dim is not stacked, then its owner's are not either.
        first_dims = {variables[path][0] if len(variables[path]) > 1 else None for path in paths}
        if len(first_dims) != 1 or None in first_dims:
            continue
        has_stacked_norm = any(_is_norm(path) and len(variables[path]) == 2 for path in paths)
        nested_slashes = owner.count("/") + 2
        has_nested_kernel = any(path.endswith("/kernel") and path.count("/") > nested_slashes for path in paths)
        if has_stacked_norm and has_nested_kernel:
            stacked.update(paths)
    return frozenset(stacked)


def _is_norm(path: str) -> bool:
    """Returns whether a variable is of a norm, by the name of its layer."""
    layer, _, name = path.rpartition("/")
    layer_name = layer.rpartition("/")[2].lower()
    return bool(_NORM_NAME.search(layer_name)) and name not in ("kernel", "embeddings")


def _dense_below(dense: Iterable[Layer], owners: Iterable[str]) -> dict[str, list[Layer]]:
    """Returns path -> dense layers below it, without those inside an attention.

    Args:
      dense: layers without a role.
      owners: of the attentions.
    """
    attention_owners = set(owners)
    below: dict[str, list[Layer]] = {}
    for layer in dense:
        containing = list(ancestors(layer.path))
        if attention_owners.isdisjoint(containing):
            for path in containing:
                below.setdefault(path, []).append(layer)
    return below


def _vocabulary(variables: Mapping[str, Shape], dense: Iterable[Layer]) -> dict[str, Role]:
    """Returns the roles of token embeddings (V, D), of their reverse (D, V), and of a head (D, V)."""
    roles: dict[str, Role] = {}
    vocabulary_sizes = set()
    for path, shape in variables.items():
        layer, _, name = path.rpartition("/")
        if len(shape) != 2:
            continue
        if name in _TABLE_VARIABLES and _embeds_tokens(layer.rpartition("/")[2]):
            roles[path] = Role(VOCABULARY, layer, shape[0], 0, width=1)
            vocabulary_sizes.add(shape[0])
        elif name == "reverse_embeddings":
            roles[path] = Role(VOCABULARY, layer, shape[1], 1, width=0)
    for head in dense:
        width, units = head.shape
        if units in vocabulary_sizes and units != width:
            roles[head.kernel] = Role(VOCABULARY, head.path, units, 1, width=0)
            if head.bias is not None:
                roles[head.bias_path] = Role(VOCABULARY, head.path, units, 0)
    return roles


def _embeds_tokens(layer_name: str) -> bool:
    """Returns whether the name of a layer says that it embeds tokens; GPT-2's is `wte`."""
    words = words_of(layer_name)
    if words & _OTHER_TABLES:
        return False
    return "wte" in words or any(word.startswith(_TOKEN_WORDS) for word in words)


def _adapters(variables: Mapping[str, Shape], roles: Mapping[str, Role]) -> dict[str, Role]:
    """Returns the roles of LoRA's kernels: A has a kernel's dims except the last, B the last (arXiv:2106.09685)."""
    adapter_roles = {}
    for path, shape in variables.items():
        layer, _, name = path.rpartition("/")
        match = re.fullmatch(r"lora_(kernel|embeddings)_(a|b)", name)
        if match is None:
            continue
        kernel = f"{layer}/{match[1]}"
        if kernel not in roles:
            continue
        role = roles[kernel]
        last_dim = len(variables[kernel]) - 1
        is_b = match[2] == "b"
        dim = _adapter_dim(role.dim, last_dim, len(shape), is_b=is_b)
        width = _adapter_dim(role.width, last_dim, len(shape), is_b=is_b)
        why = ""
        if dim is None:
            why = role.why_replicated or f"the other half of the adapter is sharded like {kernel}"
        adapter_roles[path] = replace(role, dim=dim, why_replicated=why, width=width, experts=None, adapter=True)
    return adapter_roles


def _adapter_dim(dim: int | None, last_dim: int, rank: int, *, is_b: bool) -> int | None:
    """Returns the dim of an adapter that is a given dim of the kernel; None if the other adapter has it.

    Args:
      dim: of the kernel.
      last_dim: of the kernel.
      rank: of the adapter.
      is_b: the adapter is B, else A.
    """
    if dim is None or (dim == last_dim) != is_b:
        return None
    return rank - 1 if is_b else dim
