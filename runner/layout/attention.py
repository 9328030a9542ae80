"""Attention by its projections: names tell query, key, value and output, shapes in which dim the heads stand.

D is the width of the model, H are heads, G key/value heads, K the width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.layout.roles import Layer, Role, tokens
from runner.layout.specs import Shape

_WORDS = {
    "query": {"query", "q", "wq"},
    "key": {"key", "k", "wk"},
    "value": {"value", "v", "wv"},
    "output": {"output", "out", "o", "wo", "proj"},
}
_WEAK = {"proj"}  # an output where nothing else is one: `gate_proj` and `down_proj` say it too
_PLAIN = {"output", "o", "wo"}
_INWARD = ("query", "key", "value")
_FUSED = ({"qkv"}, {"query", "key", "value"}, {"c", "attn"})
_QUERY_FORMS = ("DHK", "HDK")  # (width, heads, head width), and Gemma's
_OUTPUT_FORMS = ("HKD", "DHK")  # XLNet's is the second


@dataclass(frozen=True)
class Attention:
    """One attention.

    Attributes:
      owner: the path that holds its projections.
      width: of the model.
      roles: by path of variable.
    """

    owner: str
    width: int
    roles: Mapping[str, Role]


def attentions(
    layers: Sequence[Layer], variables: Mapping[str, Shape], norms: Collection[int] = ()
) -> Iterator[Attention]:
    """Yields the attentions among layers.

    A key and a value may be missing: some layers attend to another's (Gemma 4), or take the key for the value.

    Args:
      layers: of the model.
      variables: path to shape, without dims of stacked layers; the norm of a query tells a head's width.
      norms: sizes of the model's norms, of which the model's width is one.
    """
    by_path = {layer.path: layer for layer in layers}
    head_widths = _head_widths(variables)
    for owner, held in _owners(layers).items():
        named: dict[str, list[Layer]] = {}
        for layer in held:
            named.setdefault(_kind(layer.name), []).append(layer)
        if any(len(named.get(kind, ())) > 1 for kind in ("query", "key", "value", "fused")):
            continue
        query, key, value, fused = (next(iter(named.get(kind, ())), None) for kind in (*_INWARD, "fused"))
        # Of `attention/self`, as Hugging Face nests it.
        beside = by_path.get(f"{owner.rpartition('/')[0]}/output/dense")
        for output in _outputs(named.get("output") or [layer for layer in (beside,) if layer is not None]):
            found: Attention | None = None
            if fused is not None:  # of a linear attention `in_proj_qkv` lies beside `in_proj_z`
                alone = len(fused.shape) > 2 or len(named["output"]) == 1
                found = _fused(owner, fused, output) if alone else None
            elif query is not None and len(query.shape) == 2:
                found = _flat(owner, query, key, value, output, head_widths.get(owner))
            elif query is not None:
                found = _by_heads(owner, query, key, value, output, named.get("", ()), norms)
            if found is not None:
                yield found
                break


def _outputs(named: Sequence[Layer]) -> list[Layer]:
    """Returns what may be the output, the likeliest first."""
    strong = [layer for layer in named if tokens(layer.name) & (_WORDS["output"] - _WEAK)]
    return sorted(strong or named, key=lambda layer: not tokens(layer.name) & _PLAIN)


def _owners(layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """Returns the layers by what holds them, those of one name together that Keras made in two scopes.

    A layer that is built as it is first called has the names of the models around it before its path, and beside it
    lie others that were built before, as of KerasHub's SmolLM3.
    """
    owners: dict[str, list[Layer]] = {}
    for layer in layers:
        owners.setdefault(layer.parent, []).append(layer)
    # What a path ends with -> the owners of such paths.
    ending: dict[str, list[str]] = {}
    for owner in owners:
        for end in _ends(owner):
            ending.setdefault(end, []).append(owner)
    for owner in sorted(filter(None, owners), key=len):
        around = [other for other in ending.get(owner, ()) if other in owners]
        if owner not in owners or len(around) != 1:
            continue
        names = {layer.name for layer in owners[owner]}
        if names.isdisjoint(layer.name for layer in owners[around[0]]):
            owners[owner] += owners.pop(around[0])
    return owners


def _ends(path: str) -> Iterator[str]:
    """Yields what comes after each slash of a path."""
    end = path
    while "/" in end:
        end = end.partition("/")[2]
        yield end


def _kind(name: str) -> str:
    said = tokens(name)
    if any(fused <= said for fused in _FUSED):
        return "fused"
    return next((kind for kind, known in _WORDS.items() if said & known), "")


def _by_heads(
    owner: str,
    query: Layer,
    key: Layer | None,
    value: Layer | None,
    output: Layer,
    others: Sequence[Layer],
    norms: Collection[int],
) -> Attention | None:
    """Reads kernels (D, H, K) or (H, D, K), the output's (H, K, D), (D, H, K) or (H * K, D)."""
    pair = [layer for layer in (key, value) if layer is not None]
    if any(len(layer.shape) != 3 for layer in (query, *pair)):
        return None
    fitting: list[tuple[tuple[bool, ...], str, str, dict[str, int]]] = []
    for form in _QUERY_FORMS:
        size = dict(zip(form, query.shape, strict=True))
        of_value = (value or query).shape[form.index("K")]
        if query.bias is not None and query.bias != (size["H"], size["K"]):
            continue
        # But where it attends to another model.
        alike = key is None or all(key.shape[form.index(dim)] == size[dim] for dim in "DK")
        for output_form in _OUTPUT_FORMS if len(output.shape) == 3 else ("ND",):
            out = dict(zip(output_form, output.shape, strict=False))
            rows = {"N": size["H"] * of_value} if output_form == "ND" else {"H": size["H"], "K": of_value}
            if len(output.shape) == len(output_form) and out == rows | {"D": out["D"]} and out["D"] == size["D"]:
                unlikely = (size["D"] not in norms, not alike, form == output_form)
                fitting.append((unlikely, form, output_form, size))
    if not fitting:
        return None
    _, form, output_form, size = min(fitting, key=lambda each: each[0])
    heads = size["H"]
    width = size["D"]
    dim = form.index("H")
    roles: dict[str, Role] = {}
    for layer in (query, *(other for other in others if other.shape == query.shape)):
        roles |= _inward(layer, Role("heads", owner, heads, dim, width=form.index("D")))
    for layer in pair:
        groups = pair[0].shape[dim]
        noun = "heads" if groups == heads else "key/value heads"
        roles |= _inward(layer, Role(noun, owner, groups, dim, width=form.index("D")))
    rows_dim = 0 if output_form == "ND" else output_form.index("H")
    roles[output.kernel] = Role("heads", owner, heads, rows_dim, width=output_form.index("D"))
    return Attention(owner, width, roles)


def _flat(
    owner: str, query: Layer, key: Layer | None, value: Layer | None, output: Layer, head_width: int | None
) -> Attention | None:
    """Reads kernels (D, N) of plain dense layers and the output's (N, D) or (H, K, D).

    Only that, or a norm of each head's queries, tells the heads.
    """
    pair = [layer for layer in (key, value) if layer is not None]
    (width, columns), rows = query.shape, output.shape[:-1]
    wanted = columns
    if key is not None and value is not None:
        wanted = value.shape[-1] * columns // max(key.shape[-1], 1)
    if len(rows) > 2 or output.shape[-1] != width or math.prod(rows) != wanted:
        return None
    if len(rows) == 2:
        head_width = columns // rows[0]
    elif head_width == columns:  # a norm over all heads at once, as OLMo 2's
        head_width = None
    known = head_width is not None and columns % head_width == 0
    each = head_width if known and head_width else 1
    noun = "heads" if known else "columns of the heads"
    roles = _inward(query, Role(noun, owner, columns // each, 1, width=0))
    roles[output.kernel] = Role(noun, owner, columns // each, 0, width=len(rows))
    for layer in pair:
        units = layer.shape[1] // each
        if layer.shape[1] == columns or known:
            roles |= _inward(
                layer, Role(noun if units == columns // each else f"key/value {noun}", owner, units, 1, width=0)
            )
        else:
            told = "how many key/value heads it has is not told by its shape"
            roles[layer.kernel] = Role(f"key/value {noun}", owner, units, whole=told, width=0)
    return Attention(owner, width, roles)


def _fused(owner: str, fused: Layer, output: Layer) -> Attention | None:
    """Reads one kernel of query, key and value: (D, H, 3 K), (D, 3, H, K), (3, D, H, K), else whole: (D, 3 N)."""
    shape = fused.shape
    rows = output.shape
    width = rows[-1]
    heads = None
    if len(shape) == 3 and shape[0] == width and shape[2] % 3 == 0:
        wanted = (shape[1], shape[2] // 3)
        heads = 1 if rows in ((*wanted, width), (wanted[0] * wanted[1], width)) else None
    elif len(shape) == 4 and width in shape[:2] and 3 in shape[:2]:
        heads = 2 if rows in ((*shape[2:], width), (shape[2] * shape[3], width)) else None
    if heads is not None:
        roles = {fused.kernel: Role("heads", owner, shape[heads], heads, width=shape.index(width))}
        if fused.bias is not None and heads - 1 < len(fused.bias) and fused.bias[heads - 1] == shape[heads]:
            roles[fused.bias_path] = Role("heads", owner, shape[heads], heads - 1)
        roles[output.kernel] = Role("heads", owner, shape[heads], 0, width=len(rows) - 1)
        return Attention(owner, width, roles)
    if len(shape) == 2 and shape[0] == width and len(rows) == 2:
        told = "query, key and value are one kernel, of which a cut of columns would not follow the heads"
        kept = {layer.kernel: layer.shape.index(width) for layer in (fused, output)}
        return Attention(
            owner, width, {path: Role("columns", owner, shape[1], whole=told, width=dim) for path, dim in kept.items()}
        )
    return None


def _inward(layer: Layer, role: Role) -> dict[str, Role]:
    """Returns the roles of a projection to heads: its kernel's, and its bias's, which lies as the heads do."""
    assert role.dim is not None
    found = {layer.kernel: role}
    if layer.bias is not None and layer.shape[role.dim] in layer.bias:
        found[layer.bias_path] = Role(role.noun, role.owner, role.units, 0)
    return found


def _head_widths(variables: Mapping[str, Shape]) -> dict[str, int | None]:
    """Returns the width of a head by the attention's owner, as the first norm of its queries has it."""
    found: dict[str, int | None] = {}
    for path, shape in variables.items():
        layer, _, _ = path.rpartition("/")
        owner, _, name = layer.rpartition("/")
        if owner in found:
            continue
        said = tokens(name)
        if said & _WORDS["query"] and any("norm" in word for word in said):
            found[owner] = shape[0] if len(shape) == 1 else None
    return found
