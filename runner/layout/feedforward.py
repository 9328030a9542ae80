"""Feed-forwards and experts by their shapes: (D, F) up and perhaps a gate, (F, D) down, D the width of the model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from runner.layout.roles import Layer, Role, above, tokens
from runner.layout.specs import Shape

_DOWN = {"down", "output", "out", "wo", "linear", "o", "v"}
_MOST_UPS = 2  # with a gate
_BLOCKS = 3  # levels above an attention within which its feed-forward is looked for


def beside(owners: Iterable[tuple[str, int]], near: Mapping[str, Sequence[Layer]]) -> dict[str, Role]:
    """Returns the roles of the feed-forwards in blocks of attentions: the nearest level above each that has one.

    Args:
      owners: of the attentions, each with the model's width; the first that a variable is beside gives its role.
      near: path to the dense layers below it, in order, without those of attentions.
    """
    roles: dict[str, Role] = {}
    # Where no block has a feed-forward, as of a mixture of experts, all attentions look at the path that holds the
    # blocks: it is read once.
    read: dict[tuple[str, int], dict[str, Role]] = {}
    for owner, width in owners:
        for block in itertools.islice(above(owner), _BLOCKS):
            known = (block, width) in read
            if not known:
                read[block, width] = dict(_pairs(block, width, near.get(block, ())))
            if not read[block, width]:
                continue
            if not known:
                for path, role in read[block, width].items():
                    roles.setdefault(path, role)
            break
    return roles


def alone(layers: Sequence[Layer], widths: Collection[int]) -> dict[str, Role]:
    """Returns the roles of feed-forwards in blocks whose mixing of tokens is of another kind, as of FNet and RWKV.

    Args:
      layers: that have no role yet, in order.
      widths: that the model may have, the likeliest first.
    """
    blocks: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.parent and len(layer.shape) == 2:
            blocks.setdefault(layer.parent, []).append(layer)
    found: dict[str, Role] = {}
    order = {width: index for index, width in enumerate(widths)}
    for block, dense in blocks.items():
        # Of a width that no layer here leads to there is nothing.
        near = {layer.shape[1] for layer in dense} & order.keys()
        for width in sorted(near, key=order.__getitem__):
            wide = [layer for layer in dense if max(layer.shape) > width]
            for path, role in dict(_pairs(block, width, wide)).items():
                found.setdefault(path, role)
    return found


def _pairs(block: str, width: int, dense: Sequence[Layer]) -> Iterator[tuple[str, Role]]:
    for hidden in dict.fromkeys(layer.shape[0] for layer in dense if layer.shape[1] == width):
        if hidden == width:
            ups, downs = _square([layer for layer in dense if layer.shape == (width, width)])
        else:
            ups = [layer for layer in dense if layer.shape == (width, hidden)]
            downs = [layer for layer in dense if layer.shape == (hidden, width)]
        fused = [layer for layer in dense if layer.shape == (width, 2 * hidden)]
        if hidden < 2 or len(downs) != 1:
            continue
        down = downs[0]
        role = Role("hidden units", block, hidden)
        if 1 <= len(ups) <= _MOST_UPS:
            for up in ups:
                yield up.kernel, Role(role.noun, block, hidden, 1, width=0)
                if up.bias is not None:
                    yield up.bias_path, Role(role.noun, block, hidden, 0)
        elif not ups and len(fused) == 1 and hidden != width:
            told = "gate and up are one kernel, of which a cut of columns would part the two"
            yield fused[0].kernel, Role(role.noun, block, hidden, whole=told, width=0)
        else:
            continue
        yield down.kernel, Role(role.noun, block, hidden, 0, width=1)


def _square(dense: Sequence[Layer]) -> tuple[list[Layer], list[Layer]]:
    """Tells which of two or three square kernels leads back: by its name, else the last."""
    if not 2 <= len(dense) <= _MOST_UPS + 1 or len({layer.parent for layer in dense}) > 1:
        return [], []
    named = [layer for layer in dense if tokens(layer.name) & _DOWN]
    down = named[0] if len(named) == 1 else dense[-1]
    return [layer for layer in dense if layer is not down], [down]


def experts(variables: Mapping[str, Shape], widths: Collection[int]) -> dict[str, Role]:
    """Returns the roles of a mixture's kernels: (E, D, F), or (E, D, 2 F) with the gate in it, and (E, F, D).

    Args:
      variables: path to shape, without dims of stacked layers.
      widths: that the model may have, the likeliest first.
    """
    mixtures: dict[str, dict[str, Shape]] = {}
    for path, shape in variables.items():
        held = path.rpartition("/")[0]
        if path.endswith(("/kernel", "/bias")):
            held = held.rpartition("/")[0]
        if len(shape) in (2, 3) and re.search("expert|moe", held.lower()):
            mixtures.setdefault(held, {})[path] = shape
    found: dict[str, Role] = {}
    for owner, held_shapes in mixtures.items():
        found |= _mixture(owner, held_shapes, widths)
    return found


def _mixture(owner: str, held: Mapping[str, Shape], widths: Collection[int]) -> dict[str, Role]:
    kernels = {path: shape for path, shape in held.items() if len(shape) == 3}
    count = {shape[0] for shape in kernels.values()}
    for width in widths:
        downs = [path for path, shape in kernels.items() if shape[2] == width and shape[1] != width]
        if len(count) == 1 and len(kernels) > 1 and all(shape[1:] == (width, width) for shape in kernels.values()):
            return {path: Role("experts", owner, shape[0], 0, width=1, experts=0) for path, shape in kernels.items()}
        if not downs and [shape[1:] for shape in kernels.values()].count((width, 2 * width)) == 1:
            downs = [path for path, shape in kernels.items() if shape[1:] == (width, width)]
        if len(downs) != 1 or len(count) != 1:
            continue
        number, hidden, _ = kernels[downs[0]]
        roles = {downs[0]: Role("hidden units", owner, hidden, 1, width=2, experts=0)}
        for path, shape in kernels.items():
            if shape == (number, width, hidden):
                roles[path] = Role("hidden units", owner, hidden, 2, width=1, experts=0)
            elif shape == (number, width, 2 * hidden):  # by hidden units it would be parted between gate and up
                roles[path] = Role("experts", owner, number, 0, width=1, experts=0)
        if any(role.noun == "experts" for role in roles.values()):
            roles[downs[0]] = Role("experts", owner, number, 0, width=2, experts=0)
        for path, shape_ in held.items():
            kernel = re.sub(r"[/_]bias$", "", path)
            role = roles.get(kernel) or roles.get(f"{kernel}/kernel")
            if len(shape_) == 2 and role is not None and shape_[0] == number and kernel != path:
                by_hidden = role.noun == "hidden units" and shape_[1] == hidden and hidden != width
                dim = 0 if role.noun == "experts" else 1 if by_hidden else None
                why = "" if dim is not None else "added after the sum of the experts' parts"
                roles[path] = Role(role.noun, owner, role.units, dim, why, experts=0)
        return roles
    return {}
