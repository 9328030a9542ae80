"""Recognizes a transformer by paths and shapes, whatever its layers are called, and shards it over mesh axes.

As in Megatron-LM (arXiv:1909.08053), attention is sharded by heads, feed-forwards by hidden units (column then row),
embeddings and heads by vocabulary. A mixture's experts are sharded over the axis `experts` if the mesh has it (GShard,
arXiv:2006.16668). LoRA kernels are sharded like the adapted kernel. Position embeddings, norms and routers have no
role.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.layout.attention import attentions
from runner.layout.axes import Shape, Spec, replicated, shard_spec
from runner.layout.feedforward import alone, beside, experts
from runner.layout.roles import Layer, Role, ancestors, layers, words_of

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
    """Recognized parts of a model: roles by path, and the variables whose dim 0 counts the layers of a scan."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    stacked: frozenset[str] = frozenset()

    def first_dim(self, path: str) -> int:
        """Returns the first dim of a variable that may be sharded."""
        # A scan takes one slice of dim 0 of stacked layers after the other, so each device needs all of them.
        if path in self.stacked:
            return 1
        return 0


def read(variables: Mapping[str, Shape]) -> Structure:
    """Returns the parts that paths and shapes, in the model's order, indicate."""
    return _read(tuple((path, tuple(shape)) for path, shape in variables.items()))


# Plans of hundreds of candidates read the same few models, the whole one and those whose blocks are stacked.
@functools.lru_cache(maxsize=8)
def _read(items: tuple[tuple[str, Shape], ...]) -> Structure:
    variables = dict(items)
    stacked = _stacked(variables)
    unstacked = dict(variables)
    for path in stacked:
        unstacked[path] = variables[path][1:]
    all_layers = layers(unstacked)
    # Dicts keep the model's order: the first width is the most plausible.
    norms: dict[int, None] = {}
    for path, shape in unstacked.items():
        if len(shape) == 1 and _is_norm(path):
            norms[shape[0]] = None
    widths: dict[int, None] = {}
    width_of_owner: dict[str, int] = {}
    roles: dict[str, Role] = {}
    for attention in attentions(all_layers, unstacked, norms):
        widths[attention.width] = None
        width_of_owner[attention.owner] = attention.width
        roles |= attention.roles
    roles |= experts(unstacked, widths or norms)
    dense = [layer for layer in _without_role(all_layers, roles) if len(layer.shape) == 2]
    dense_below = _dense_below(dense, width_of_owner)
    # A role that is known already wins.
    roles = beside(width_of_owner.items(), dense_below) | roles
    roles = alone(_without_role(dense, roles), widths | norms) | roles
    if roles:
        roles |= _vocabulary(unstacked, _without_role(dense, roles))
    roles |= _adapters(unstacked, roles)
    for path in stacked.intersection(roles):
        roles[path] = roles[path].below_stack()
    return Structure(roles, stacked)


def _without_role(candidates: Iterable[Layer], roles: Mapping[str, Role]) -> list[Layer]:
    return [layer for layer in candidates if layer.kernel not in roles]


def place(role: Role, shape: Shape, axis: str, axes: Mapping[str, int], store: str | None = None) -> tuple[Spec, str]:
    """Shards a variable over the axes of its units, of experts and of FSDP; returns the spec and its reason in one
    line.

    `axis` shards heads, hidden units and vocabulary; the axis `experts` shards a mixture's experts only. `store` is
    that of FSDP, which shards the model width or else another dim; devices gather it where they use the variable.
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
        pronoun = "them"
        if role.units == 1:
            pronoun = "it"
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
    free_shape = list(shape)
    for dim, sharding_axis in enumerate(spec):
        if sharding_axis is not None:
            # As a size of 1, which the axis does not divide, the dim can't be chosen again.
            free_shape[dim] = 1
    fsdp_spec = shard_spec(tuple(free_shape), axis, size, first=role.stacked)
    if axis not in fsdp_spec:
        return None
    return fsdp_spec.index(axis)


def _stacked(variables: Mapping[str, Shape]) -> frozenset[str]:
    below: dict[str, list[str]] = {}
    for path in variables:
        for owner in ancestors(path):
            below.setdefault(owner, []).append(path)
    stacked: set[str] = set()
    for owner, paths in below.items():
        if _is_stack(owner, paths, variables):
            stacked.update(paths)
    return frozenset(stacked)


def _is_stack(owner: str, paths: Sequence[str], variables: Mapping[str, Shape]) -> bool:
    """Returns whether variables are those of stacked layers: of one first dim, with a norm and a nested kernel."""
    first_dims = set()
    has_stacked_norm = False
    has_nested_kernel = False
    for path in paths:
        shape = variables[path]
        if len(shape) < 2:
            # A variable of one dim is not stacked, so its neighbors are not either.
            return False
        first_dims.add(shape[0])
        has_stacked_norm |= len(shape) == 2 and _is_norm(path)
        has_nested_kernel |= path.endswith("/kernel") and path.count("/") > owner.count("/") + 2
    return len(first_dims) == 1 and has_stacked_norm and has_nested_kernel


def _is_norm(path: str) -> bool:
    """Returns whether a variable is of a norm, by the name of its layer."""
    layer, _, name = path.rpartition("/")
    layer_name = layer.rpartition("/")[2].lower()
    return bool(_NORM_NAME.search(layer_name)) and name not in ("kernel", "embeddings")


def _dense_below(dense: Iterable[Layer], owners: Iterable[str]) -> dict[str, list[Layer]]:
    """Returns the dense layers without a role below each path, without those inside an attention."""
    attention_owners = set(owners)
    below: dict[str, list[Layer]] = {}
    for layer in dense:
        containing = list(ancestors(layer.path))
        if attention_owners.isdisjoint(containing):
            for path in containing:
                below.setdefault(path, []).append(layer)
    return below


def _vocabulary(variables: Mapping[str, Shape], dense: Iterable[Layer]) -> dict[str, Role]:
    """Returns the roles of token embeddings (V, D), their reverse (D, V), and a head (D, V)."""
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
    """Returns the roles of LoRA's kernels (arXiv:2106.09685): A has a kernel's dims except the last, B the last."""
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
    """Returns the dim of an adapter, B or else A, that is a dim of the kernel; None: the other adapter has it."""
    if dim is None or (dim == last_dim) != is_b:
        return None
    if is_b:
        return rank - 1
    return dim
