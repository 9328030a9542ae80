"""Recognizes feed-forwards and mixtures of experts by kernel shapes.

Legend: D model width, F hidden units, E experts. A feed-forward has kernels (D, F) up, perhaps (D, F) gate, and (F, D)
down.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from runner.layout.axes import Shape
from runner.layout.roles import Layer, Role, ancestors, words_of

# Words of the names of down projections, for kernels whose shape does not tell.
_DOWN_NAMES = {"down", "output", "out", "wo", "linear", "o", "v"}

# An up projection and a gate.
_MOST_UPS = 2

# A feed-forward belongs to an attention if a path at most so many levels above the attention contains both.
_LEVELS_ABOVE = 3

_HIDDEN_UNITS = "hidden units"
_EXPERTS = "experts"


def beside(owners: Iterable[tuple[str, int]], dense_below: Mapping[str, Sequence[Layer]]) -> dict[str, Role]:
    """Returns the roles of the feed-forwards in the nearest level above each attention that has any.

    `owners` are path and model width of each attention; the first that finds a variable gives its role.
    `dense_below` has the dense layers below a path, in order, without those of attentions.
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
    """Returns the roles of feed-forwards in blocks that mix tokens in another way, as those of FNet and RWKV.

    `widths` are possible model widths, the most plausible first.
    """
    by_block: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.parent and len(layer.shape) == 2:
            by_block.setdefault(layer.parent, []).append(layer)
    roles: dict[str, Role] = {}
    for block, dense in by_block.items():
        output_widths = {layer.shape[1] for layer in dense}
        for width in widths:
            # Only widths that a layer of the block has as its output can be the model's here.
            if width not in output_widths:
                continue
            # Hidden units are more than the width, else any two dense layers would be a feed-forward.
            wide = [layer for layer in dense if max(layer.shape) > width]
            for path, role in dict(_feedforwards(block, width, wide)).items():
                roles.setdefault(path, role)
    return roles


def _feedforwards(block: str, width: int, dense: Sequence[Layer]) -> Iterator[tuple[str, Role]]:
    """Yields path and role of the variables of the feed-forwards among layers whose kernels have two dims."""
    widths_in = dict.fromkeys(layer.shape[0] for layer in dense if layer.shape[1] == width)
    for hidden in widths_in:
        if hidden == width:
            ups, downs = _square_ups_and_downs(_of_shape(dense, (width, width)))
        else:
            ups = _of_shape(dense, (width, hidden))
            downs = _of_shape(dense, (hidden, width))
        fused = _of_shape(dense, (width, 2 * hidden))
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


def _of_shape(dense: Sequence[Layer], shape: Shape) -> list[Layer]:
    return [layer for layer in dense if layer.shape == shape]


def _square_ups_and_downs(dense: Sequence[Layer]) -> tuple[list[Layer], list[Layer]]:
    """Returns which of two or three square kernels are up or gate, and down: by its name, else the last."""
    parents = {layer.parent for layer in dense}
    is_one_feedforward = 2 <= len(dense) <= _MOST_UPS + 1 and len(parents) == 1
    if not is_one_feedforward:
        return [], []
    # Without a name that tells, the last is down: a model creates its layers in the order of their use.
    down = dense[-1]
    named_down = [layer for layer in dense if words_of(layer.name) & _DOWN_NAMES]
    if len(named_down) == 1:
        down = named_down[0]
    ups = list(dense)
    ups.remove(down)
    return ups, [down]


def experts(variables: Mapping[str, Shape], widths: Collection[int]) -> dict[str, Role]:
    """Returns the roles of a mixture's kernels: (E, D, F), or (E, D, 2 F) with the gate in it, and (E, F, D).

    `variables` are shapes without dims of stacked layers; `widths` possible model widths, the most plausible first.
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
    """Returns the roles of one mixture's variables; none if the shapes fit none of the widths."""
    kernels: dict[str, Shape] = {}
    counts: set[int] = set()
    # Shape of one expert's kernel -> paths of the kernels.
    by_expert_shape: dict[Shape, list[str]] = {}
    for path, shape in shapes.items():
        if len(shape) == 3:
            kernels[path] = shape
            counts.add(shape[0])
            by_expert_shape.setdefault(shape[1:], []).append(path)
    if len(counts) != 1:
        return {}
    (count,) = counts
    for width in widths:
        if len(kernels) > 1 and by_expert_shape.keys() == {(width, width)}:
            # Up and down have the same shape, so hidden units can't be told from the width.
            return dict.fromkeys(kernels, Role(_EXPERTS, owner, count, 0, width=1, experts=0))
        down = _down_of_mixture(by_expert_shape, width)
        if down is None:
            continue
        hidden = kernels[down][1]
        roles = {down: Role(_HIDDEN_UNITS, owner, hidden, 1, width=2, experts=0)}
        has_fused_gate = False
        for path, shape in kernels.items():
            if shape == (count, width, hidden):
                roles[path] = Role(_HIDDEN_UNITS, owner, hidden, 2, width=1, experts=0)
            elif shape == (count, width, 2 * hidden):
                # Sharded by hidden units, gate and up would be on different devices.
                roles[path] = Role(_EXPERTS, owner, count, 0, width=1, experts=0)
                has_fused_gate = True
        if has_fused_gate:
            # Its hidden units are not sharded, so those of down can't be either.
            roles[down] = Role(_EXPERTS, owner, count, 0, width=2, experts=0)
        for path, bias_shape in shapes.items():
            bias_role = _bias_role(path, bias_shape, roles, count, width)
            if bias_role is not None:
                roles[path] = bias_role
        return roles
    return {}


def _down_of_mixture(by_expert_shape: Mapping[Shape, Sequence[str]], width: int) -> str | None:
    """Returns the path of the only kernel (E, F, D), or None; shapes are those of one expert, without E."""
    downs: list[str] = []
    for (rows, columns), paths in by_expert_shape.items():
        if columns == width and rows != width:
            downs += paths
    # With F = D the kernel is square; that of gate and up still tells it apart.
    is_gated = len(by_expert_shape.get((width, 2 * width), ())) == 1
    if not downs and is_gated:
        downs += by_expert_shape.get((width, width), ())
    if len(downs) != 1:
        return None
    return downs[0]


def _bias_role(path: str, shape: Shape, roles: Mapping[str, Role], count: int, width: int) -> Role | None:
    """Returns the role of the bias (E, F) or (E, D) of a mixture's kernel; None: the variable is no such bias."""
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
