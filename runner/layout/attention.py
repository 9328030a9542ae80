"""Recognizes attention by the names and kernel shapes of its projections.

Names tell query, key, value and output apart; shapes tell which dim counts the heads. Legend: D model width, H heads,
G key/value heads, K head width, N = H * K.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.layout.axes import Shape
from runner.layout.roles import Layer, Role, words_of

# Words of the names of projections.
_NAMES = {
    "query": {"query", "q", "wq"},
    "key": {"key", "k", "wk"},
    "value": {"value", "v", "wv"},
    "output": {"output", "out", "o", "wo", "proj"},
}
# Words of the names of one projection to query, key and value; GPT-2's is `c_attn`.
_FUSED_NAMES = ({"qkv"}, {"query", "key", "value"}, {"c", "attn"})

# Indicates an output only if no other name does: `gate_proj` and `down_proj` contain it too.
_WEAK_OUTPUT = "proj"
# Names that are preferred if several layers may be the output.
_PREFERRED_OUTPUTS = {"output", "o", "wo"}

# Dims of the query's kernel; Gemma's has the heads first.
_QUERY_FORMS = ("DHK", "HDK")
# Dims of the output's kernel; XLNet's is the second. Plain dense layers have the last.
_FLAT_OUTPUT = "ND"
_OUTPUT_FORMS = ("HKD", "DHK", _FLAT_OUTPUT)


@dataclass(frozen=True)
class Attention:
    """An attention: the path that contains its projections, the model's width, and its variables' roles by path."""

    owner: str
    width: int
    roles: Mapping[str, Role]


@dataclass(frozen=True)
class _Projections:
    """The projections of one attention, as their names tell.

    `key` is None if it shares another layer's, as some layers of Gemma 4 do; `value` too, or if it is the key; `query`
    if all three are `fused` in one kernel. `outputs` may be the output, the most plausible first; `others` have no
    such name.
    """

    query: Layer | None
    key: Layer | None
    value: Layer | None
    fused: Layer | None
    outputs: Sequence[Layer]
    is_output_unique: bool
    others: Sequence[Layer]


def attentions(
    layers: Sequence[Layer], variables: Mapping[str, Shape], norms: Collection[int] = ()
) -> Iterator[Attention]:
    """Yields the attentions among layers.

    `variables` are shapes without dims of stacked layers; the norm of a query has the width of a head. `norms` are the
    sizes of the model's norms, one of which is the model width.
    """
    by_path = {layer.path: layer for layer in layers}
    head_widths = _head_widths(variables)
    for owner, members in _by_owner(layers).items():
        # Hugging Face nests the projections as `attention/self/query`, and the output as `attention/output/dense`.
        nested_output = by_path.get(f"{owner.rpartition('/')[0]}/output/dense")
        projections = _projections(members, nested_output)
        if projections is None:
            continue
        for output in projections.outputs:
            attention = _recognized(owner, projections, output, head_widths.get(owner), norms)
            if attention is not None:
                yield attention
                break


def _recognized(
    owner: str, projections: _Projections, output: Layer, head_width: int | None, norms: Collection[int]
) -> Attention | None:
    """Returns the attention of projections, if their shapes fit together."""
    query = projections.query
    if projections.fused is not None:
        # Linear attention has `in_proj_qkv` and `in_proj_z`, two layers whose name contains `proj`; it has no heads.
        is_linear = len(projections.fused.shape) == 2 and not projections.is_output_unique
        if is_linear:
            return None
        return _fused(owner, projections.fused, output)
    if query is None:
        return None
    if len(query.shape) == 2:
        return _flat(owner, query, projections.key, projections.value, output, head_width)
    return _by_heads(owner, query, projections, output, norms)


def _projections(members: Sequence[Layer], nested_output: Layer | None) -> _Projections | None:
    """Sorts the layers of one owner by their names; None if two have the same role.

    `nested_output` is the output if no member has the name of one.
    """
    by_kind: dict[str, list[Layer]] = {}
    for layer in members:
        by_kind.setdefault(_kind(layer.name), []).append(layer)
    single: dict[str, Layer | None] = {}
    for kind in ("query", "key", "value", "fused"):
        of_kind = by_kind.get(kind, [])
        if len(of_kind) > 1:
            return None
        single[kind] = next(iter(of_kind), None)
    outputs = by_kind.get("output", [])
    if not outputs and nested_output is not None:
        outputs = [nested_output]
    return _Projections(
        query=single["query"],
        key=single["key"],
        value=single["value"],
        fused=single["fused"],
        outputs=_ordered_outputs(outputs),
        is_output_unique=len(outputs) == 1,
        others=by_kind.get("", []),
    )


def _kind(name: str) -> str:
    """Returns the kind of projection that a layer's name indicates; empty if none."""
    words = words_of(name)
    if any(fused <= words for fused in _FUSED_NAMES):
        return "fused"
    for kind, known in _NAMES.items():
        if words & known:
            return kind
    return ""


def _ordered_outputs(named: Sequence[Layer]) -> list[Layer]:
    """Returns the layers that may be the output, the most plausible first."""
    strong_words = _NAMES["output"] - {_WEAK_OUTPUT}
    strong = [layer for layer in named if words_of(layer.name) & strong_words]
    return sorted(strong or named, key=lambda layer: not words_of(layer.name) & _PREFERRED_OUTPUTS)


def _by_owner(layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """Returns the layers directly below each path, those of one owner that Keras built in two scopes joined.

    The path of a layer that is built in its first call starts with the names of the models around it; that of its
    sibling that was built earlier does not (KerasHub's SmolLM3).
    """
    by_owner: dict[str, list[Layer]] = {}
    for layer in layers:
        by_owner.setdefault(layer.parent, []).append(layer)
    # End of a path -> owners whose path ends so. Without this index each owner would be compared with all others.
    by_suffix: dict[str, list[str]] = {}
    for owner in by_owner:
        for suffix in _suffixes(owner):
            by_suffix.setdefault(suffix, []).append(owner)
    for owner in sorted(filter(None, by_owner), key=len):
        longer = [other for other in by_suffix.get(owner, ()) if other in by_owner]
        if owner not in by_owner or len(longer) != 1:
            continue
        siblings = by_owner[owner] + by_owner[longer[0]]
        # Two layers of one name can't be siblings.
        if len({layer.name for layer in siblings}) == len(siblings):
            by_owner[owner] = siblings
            del by_owner[longer[0]]
    return by_owner


def _suffixes(path: str) -> Iterator[str]:
    """Yields what comes after each slash of a path."""
    suffix = path
    while "/" in suffix:
        suffix = suffix.partition("/")[2]
        yield suffix


@dataclass(frozen=True)
class _Fit:
    """One way to read the dims of the query's and the output's kernels.

    `implausible` are facts against it, the strongest first: readings are compared by these in order.
    """

    implausible: tuple[bool, ...]
    query_form: str
    output_form: str
    width: int
    heads: int


def _by_heads(
    owner: str, query: Layer, projections: _Projections, output: Layer, norms: Collection[int]
) -> Attention | None:
    """Reads kernels (D, H, K) or (H, D, K), and the output's (H, K, D), (D, H, K) or (N, D)."""
    key_and_value = list(filter(None, (projections.key, projections.value)))
    if any(len(layer.shape) != 3 for layer in (query, *key_and_value)):
        return None
    fits = list(_fits(query, projections, output, norms))
    if not fits:
        return None
    fit = min(fits, key=lambda fit: fit.implausible)
    heads_dim = fit.query_form.index("H")
    width_dim = fit.query_form.index("D")
    roles: dict[str, Role] = {}
    # A projection of the query's shape and another name, such as a gate of the heads, has the heads too.
    for layer in (query, *projections.others):
        if layer.shape == query.shape:
            roles |= _input_roles(layer, Role("heads", owner, fit.heads, heads_dim, width=width_dim))
    for layer in key_and_value:
        groups = key_and_value[0].shape[heads_dim]
        noun = "heads"
        if groups != fit.heads:
            # Grouped-query attention: several heads share one key and value.
            noun = "key/value heads"
        roles |= _input_roles(layer, Role(noun, owner, groups, heads_dim, width=width_dim))
    if fit.output_form == _FLAT_OUTPUT:
        rows_dim = 0
    else:
        rows_dim = fit.output_form.index("H")
    roles[output.kernel] = Role("heads", owner, fit.heads, rows_dim, width=fit.output_form.index("D"))
    return Attention(owner, fit.width, roles)


def _fits(query: Layer, projections: _Projections, output: Layer, norms: Collection[int]) -> Iterator[_Fit]:
    """Yields every reading of the kernels' dims that fits query and output."""
    key = projections.key
    for query_form in _QUERY_FORMS:
        size = dict(zip(query_form, query.shape, strict=True))
        value_width = (projections.value or query).shape[query_form.index("K")]
        if query.bias is not None and query.bias != (size["H"], size["K"]):
            continue
        # In cross-attention the key's input may be of another model, of another width.
        key_fits = key is None or all(key.shape[query_form.index(dim)] == size[dim] for dim in "DK")
        for output_form in _OUTPUT_FORMS:
            if len(output.shape) != len(output_form):
                continue
            if output_form == _FLAT_OUTPUT:
                expected = {"N": size["H"] * value_width, "D": size["D"]}
            else:
                expected = {"H": size["H"], "K": value_width, "D": size["D"]}
            if dict(zip(output_form, output.shape, strict=True)) == expected:
                implausible = (size["D"] not in norms, not key_fits, query_form == output_form)
                yield _Fit(implausible, query_form, output_form, size["D"], size["H"])


def _flat(
    owner: str, query: Layer, key: Layer | None, value: Layer | None, output: Layer, head_width: int | None
) -> Attention | None:
    """Reads kernels (D, N) of plain dense layers, and the output's (N, D) or (H, K, D).

    Such shapes tell the number of heads only if the output's kernel has them, or if each head's queries have a norm,
    whose size is `head_width`.
    """
    key_and_value = list(filter(None, (key, value)))
    width, columns = query.shape
    rows = output.shape[:-1]
    expected_rows = columns
    if key is not None and value is not None:
        # The heads of values may have another width than those of queries and keys.
        expected_rows = value.shape[-1] * columns // max(key.shape[-1], 1)
    if len(rows) > 2 or output.shape[-1] != width or math.prod(rows) != expected_rows:
        return None
    if len(rows) == 2:
        head_width = columns // rows[0]
    elif head_width == columns:
        # A norm over all heads at once, as OLMo 2 has.
        head_width = None
    if head_width and columns % head_width == 0:
        noun = "heads"
        unit_width = head_width
    else:
        noun = "columns of the heads"
        unit_width = 1
    heads = columns // unit_width
    roles = _input_roles(query, Role(noun, owner, heads, 1, width=0))
    roles[output.kernel] = Role(noun, owner, heads, 0, width=len(rows))
    for layer in key_and_value:
        units = layer.shape[1] // unit_width
        if layer.shape[1] == columns or noun == "heads":
            layer_noun = noun
            if units != heads:
                layer_noun = f"key/value {noun}"
            roles |= _input_roles(layer, Role(layer_noun, owner, units, 1, width=0))
        else:
            why = "its shape does not tell the number of key/value heads"
            roles[layer.kernel] = Role(f"key/value {noun}", owner, units, why_replicated=why, width=0)
    return Attention(owner, width, roles)


def _fused(owner: str, fused: Layer, output: Layer) -> Attention | None:
    """Reads a kernel (D, H, 3 K), (D, 3, H, K) or (3, D, H, K); one of (D, 3 N) is replicated."""
    shape = fused.shape
    output_shape = output.shape
    output_rows = output_shape[:-1]
    width = output_shape[-1]
    heads_dim = None
    if len(shape) == 3 and shape[0] == width and shape[2] % 3 == 0:
        heads = (shape[1], shape[2] // 3)
        if output_rows in (heads, (math.prod(heads),)):
            heads_dim = 1
    elif len(shape) == 4 and width in shape[:2] and 3 in shape[:2]:
        heads = (shape[2], shape[3])
        if output_rows in (heads, (math.prod(heads),)):
            heads_dim = 2
    if heads_dim is not None:
        units = shape[heads_dim]
        roles = {fused.kernel: Role("heads", owner, units, heads_dim, width=shape.index(width))}
        # The bias has the kernel's dims without the width.
        bias_dim = heads_dim - 1
        if fused.bias is not None and bias_dim < len(fused.bias) and fused.bias[bias_dim] == units:
            roles[fused.bias_path] = Role("heads", owner, units, bias_dim)
        roles[output.kernel] = Role("heads", owner, units, 0, width=len(output_rows))
        return Attention(owner, width, roles)
    if len(shape) == 2 and shape[0] == width and len(output_shape) == 2:
        why = "query, key and value are one kernel, whose columns can't be sharded by heads"
        roles = {}
        for layer in (fused, output):
            width_dim = layer.shape.index(width)
            roles[layer.kernel] = Role("columns", owner, shape[1], why_replicated=why, width=width_dim)
        return Attention(owner, width, roles)
    return None


def _input_roles(layer: Layer, role: Role) -> dict[str, Role]:
    """Returns the roles of a projection to heads, of its kernel and its bias, which are sharded alike."""
    assert role.dim is not None
    roles = {layer.kernel: role}
    if layer.bias is not None and layer.shape[role.dim] in layer.bias:
        roles[layer.bias_path] = Role(role.noun, role.owner, role.units, 0)
    return roles


def _head_widths(variables: Mapping[str, Shape]) -> dict[str, int | None]:
    """Returns the width of a head by owner of an attention, read from the first norm of its queries."""
    widths: dict[str, int | None] = {}
    for path, shape in variables.items():
        layer = path.rpartition("/")[0]
        owner, _, name = layer.rpartition("/")
        if owner in widths:
            continue
        if words_of(name) & _NAMES["query"] and "norm" in name.lower():
            widths[owner] = None
            if len(shape) == 1:
                widths[owner] = shape[0]
    return widths
