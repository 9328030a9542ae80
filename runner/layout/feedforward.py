"""Recognizes feed-forwards and mixtures of experts by kernel shapes.

Legend: D model width, F hidden units, E experts. A feed-forward has kernels (D, F) up, perhaps (D, F) gate, and (F, D)
down.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from runner.layout.roles import Layer, Role, ancestors, words_of
from runner.layout.specs import Shape

# Words of the names of down projections, for kernels whose shape does not tell.
_DOWN_NAMES = {"down", "output", "out", "wo", "linear", "o", "v"}

# An up projection and a gate.
_MOST_UPS = 2

# A feed-forward belongs to an attention if a path at most so many levels above the attention contains both.
_LEVELS_ABOVE = 3

_HIDDEN_UNITS = "hidden units"
_EXPERTS = "experts"


def beside(owners: Iterable[tuple[str, int]], dense_below: Mapping[str, Sequence[Layer]]) -> dict[str, Role]:
    """Returns the roles of the feed-forwards of attentions: in the nearest level above each that has any.

    Args:
      owners: path and model width of each attention; the first that finds a variable gives its role.
      dense_below: path to the dense layers below it, in order, without those of attentions.
    """
    roles: dict[str, Role] = {}
    # If no block has a feed-forward, as with a mixture of experts, all attentions get to the path that contains the
    # blocks. It is read once only, so that the cost grows with the number of variables, not with its square.
    roles_below: dict[tuple[str, int], dict[str, Role]] = {}
    for owner, width in owners:
        for block in itertools.islice(ancestors(owner), _LEVELS_ABOVE):
            if (block, width) not in roles_below:
                block_roles = dict(_feedforwards(block, width, dense_below.get(block, ())))
                roles_below[block, width] = block_roles
                for path, role in block_roles.items():
                    roles.setdefault(path, role)
            if roles_below[block, width]:
                break
    return roles


def alone(layers: Sequence[Layer], widths: Collection[int]) -> dict[str, Role]:
    """Returns the roles of feed-forwards in blocks that mix tokens without attention, such as FNet and RWKV.

    Args:
      layers: without a role yet, in order.
      widths: possible model widths, the most plausible first.
    """
    by_block: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.parent and len(layer.shape) == 2:
            by_block.setdefault(layer.parent, []).append(layer)
    roles: dict[str, Role] = {}
    rank = {width: index for index, width in enumerate(widths)}
    for block, dense in by_block.items():
        # Only widths that a layer of the block has as its output can be the model's here.
        block_widths = {layer.shape[1] for layer in dense} & rank.keys()
        for width in sorted(block_widths, key=rank.__getitem__):
            # Hidden units are more than the width, else any two dense layers would be a feed-forward.
            wide = [layer for layer in dense if max(layer.shape) > width]
            for path, role in dict(_feedforwards(block, width, wide)).items():
                roles.setdefault(path, role)
    return roles


def _feedforwards(block: str, width: int, dense: Sequence[Layer]) -> Iterator[tuple[str, Role]]:
    """Yields path and role of the variables of the feed-forwards among dense layers.

    Args:
      block: their owner, for the reasons of specs.
      width: of the model.
      dense: layers whose kernels have two dims.
    """
    widths_in = dict.fromkeys(layer.shape[0] for layer in dense if layer.shape[1] == width)
    for hidden in widths_in:
        if hidden == width:
            ups, downs = _square_ups_and_downs([layer for layer in dense if layer.shape == (width, width)])
        else:
            ups = [layer for layer in dense if layer.shape == (width, hidden)]
            downs = [layer for layer in dense if layer.shape == (hidden, width)]
        fused = [layer for layer in dense if layer.shape == (width, 2 * hidden)]
        if hidden < 2 or len(downs) != 1:
            continue
        down = downs[0]
        if 1 <= len(ups) <= _MOST_UPS:
            for up in ups:
                yield up.kernel, Role(_HIDDEN_UNITS, block, hidden, 1, width=0)
                if up.bias is not None:
                    yield up.bias_path, Role(_HIDDEN_UNITS, block, hidden, 0)
        elif not ups and len(fused) == 1 and hidden != width:
            why = "gate and up are one kernel, whose columns can't be sharded without separating the two"
            yield fused[0].kernel, Role(_HIDDEN_UNITS, block, hidden, why_replicated=why, width=0)
        else:
            continue
        yield down.kernel, Role(_HIDDEN_UNITS, block, hidden, 0, width=1)


def _square_ups_and_downs(dense: Sequence[Layer]) -> tuple[list[Layer], list[Layer]]:
    """Returns which of two or three square kernels are up (or gate), and which is down: by its name, else the last."""
    is_one_feedforward = 2 <= len(dense) <= _MOST_UPS + 1 and len({layer.parent for layer in dense}) == 1
    if not is_one_feedforward:
        return [], []
    named_down = [layer for layer in dense if words_of(layer.name) & _DOWN_NAMES]
    down = named_down[0] if len(named_down) == 1 else dense[-1]
    return [layer for layer in dense if layer is not down], [down]


def experts(variables: Mapping[str, Shape], widths: Collection[int]) -> dict[str, Role]:
    """Returns the roles of a mixture's kernels: (E, D, F), or (E, D, 2 F) with the gate in it, and (E, F, D).

    Args:
      variables: path to shape, without dims of stacked layers.
      widths: possible model widths, the most plausible first.
    """
    mixtures: dict[str, dict[str, Shape]] = {}
    for path, shape in variables.items():
        owner = path.rpartition("/")[0]
        if path.endswith(("/kernel", "/bias")):
            owner = owner.rpartition("/")[0]
        if len(shape) in (2, 3) and re.search("expert|moe", owner.lower()):
            mixtures.setdefault(owner, {})[path] = shape
    roles: dict[str, Role] = {}
    for owner, shapes in mixtures.items():
        roles |= _mixture(owner, shapes, widths)
    return roles


def _mixture(owner: str, shapes: Mapping[str, Shape], widths: Collection[int]) -> dict[str, Role]:
    """Returns the roles of one mixture's variables; empty if the shapes fit none of the widths."""
    kernels = {path: shape for path, shape in shapes.items() if len(shape) == 3}
    counts = {shape[0] for shape in kernels.values()}
    if len(counts) != 1:
        return {}
    (count,) = counts
    for width in widths:
        if len(kernels) > 1 and all(shape[1:] == (width, width) for shape in kernels.values()):
            # Up and down have the same shape, so hidden units can't be told from the width.
            return {path: Role(_EXPERTS, owner, count, 0, width=1, experts=0) for path in kernels}
        down = _down_of_mixture(kernels, width)
        if down is None:
            continue
        hidden = kernels[down][1]
        roles = {down: Role(_HIDDEN_UNITS, owner, hidden, 1, width=2, experts=0)}
        for path, shape in kernels.items():
            if shape == (count, width, hidden):
                roles[path] = Role(_HIDDEN_UNITS, owner, hidden, 2, width=1, experts=0)
            elif shape == (count, width, 2 * hidden):
                # Sharded by hidden units, gate and up would be on different devices.
                roles[path] = Role(_EXPERTS, owner, count, 0, width=1, experts=0)
        if any(role.noun == _EXPERTS for role in roles.values()):
            roles[down] = Role(_EXPERTS, owner, count, 0, width=2, experts=0)
        for path, bias_shape in shapes.items():
            bias_role = _bias_role(path, bias_shape, roles, count, width)
            if bias_role is not None:
                roles[path] = bias_role
        return roles
    return {}


def _down_of_mixture(kernels: Mapping[str, Shape], width: int) -> str | None:
    """Returns the path of the only kernel (E, F, D); None if there is none or several."""
    downs = [path for path, shape in kernels.items() if shape[2] == width and shape[1] != width]
    if not downs:
        # With F = D the kernel is square; that of gate and up still tells it apart.
        is_gated = [shape[1:] for shape in kernels.values()].count((width, 2 * width)) == 1
        if is_gated:
            downs = [path for path, shape in kernels.items() if shape[1:] == (width, width)]
    return downs[0] if len(downs) == 1 else None


def _bias_role(path: str, shape: Shape, roles: Mapping[str, Role], count: int, width: int) -> Role | None:
    """Returns the role of the bias (E, F) or (E, D) of a mixture's kernel; None if the variable is no such bias.

    Args:
      path: of the variable.
      shape: of the variable.
      roles: of the mixture's kernels.
      count: E.
      width: D.
    """
    kernel = re.sub(r"[/_]bias$", "", path)
    role = roles.get(kernel) or roles.get(f"{kernel}/kernel")
    if kernel == path or role is None or len(shape) != 2 or shape[0] != count:
        return None
    if role.noun == _EXPERTS:
        return Role(role.noun, role.owner, role.units, 0, experts=0)
    hidden = role.units
    if shape[1] == hidden and hidden != width:
        return Role(role.noun, role.owner, hidden, 1, experts=0)
    why = "added after the sum of the experts' parts"
    return Role(role.noun, role.owner, hidden, why_replicated=why, experts=0)
