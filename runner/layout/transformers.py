"""Knows a transformer by its variables' paths and shapes, whoever named them, and splits it over mesh axes.

The splits are Megatron-LM's (arXiv:1909.08053): attention by heads, feed-forwards by hidden units (column then row),
embeddings and heads by vocabulary; a mixture's experts over the axis `experts` where the mesh has it (GShard,
arXiv:2006.16668). An adapter of low rank lies as its kernel does. Position embeddings, norms and routers have no role.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from runner.layout.attention import attentions
from runner.layout.feedforward import alone, beside, experts
from runner.layout.roles import Layer, Role, above, layers, tokens
from runner.layout.specs import Shape, Spec, shard_spec, whole

VOCABULARY = "tokens of the vocabulary"  # noun of the roles of tables of tokens and of heads
EXPERTS = "experts"  # the mesh axis that splits experts, and nothing else
_TABLES = ("embeddings", "embedding")
_OTHER_TABLES = {"position", "positional", "positions", "pos", "segment", "type", "relative", "rel", "class", "mask"}
_NORM = re.compile(r"norm|(^|_)ln(_|\d|$)")


@dataclass(frozen=True)
class Structure:
    """What is known of a model.

    Attributes:
      roles: by path; what has none is whole.
      stacked: paths whose dim 0 counts the layers of a scan.
    """

    roles: Mapping[str, Role] = field(default_factory=dict)
    stacked: frozenset[str] = frozenset()


def read(variables: Mapping[str, Shape]) -> Structure:
    """Returns what paths and shapes tell.

    Args:
      variables: canonical path to shape, in the model's order.
    """
    stacked = _stacked(variables)
    seen = {path: shape[1:] if path in stacked else shape for path, shape in variables.items()}
    every = layers(seen)
    norms = dict.fromkeys(shape[0] for path, shape in seen.items() if len(shape) == 1 and _is_norm(path))
    found = list(attentions(every, seen, norms))
    owners = [each.owner for each in found]
    widths = dict.fromkeys(each.width for each in found)
    roles: dict[str, Role] = {}
    for each in found:
        roles |= each.roles
    roles |= experts(seen, widths or norms)
    free = [layer for layer in every if layer.kernel not in roles and len(layer.shape) == 2]
    near = _by_place(free, owners)
    roles = beside(((each.owner, each.width) for each in found), near) | roles
    roles = alone([layer for layer in free if layer.kernel not in roles], widths | norms) | roles
    if found or roles:
        roles |= _vocabulary(seen, [layer for layer in free if layer.kernel not in roles])
    roles |= _adapters(seen, roles)
    return Structure({path: role.below(path in stacked) for path, role in roles.items()}, stacked)


def place(role: Role, shape: Shape, axis: str, axes: Mapping[str, int], store: str | None = None) -> tuple[Spec, str]:
    """Splits a variable over the axis of its units, over `experts` and in store.

    Args:
      role: of the variable.
      shape: the whole variable's.
      axis: splits heads, hidden units and vocabulary; `experts` splits a mixture's experts alone.
      axes: mesh axis to size.
      store: splits the width of the model too, else another dim, of what each device gathers where it is used.

    Returns:
      The spec, and why in a line.
    """
    spec: list[str | None] = list(whole(shape))
    said = []
    if role.experts is not None and EXPERTS in axes and axes[EXPERTS] > 1:
        count = shape[role.experts]
        if count % axes[EXPERTS] == 0:
            spec[role.experts] = EXPERTS
            said.append(f"{count} experts of {role.owner}, {EXPERTS} divides them")
        else:
            said.append(f"{EXPERTS} of size {axes[EXPERTS]} does not divide the {count} experts of {role.owner}")
    if axis != EXPERTS and role.dim is not None and spec[role.dim] is None:
        fits = role.units % axes[axis] == 0 and shape[role.dim] % axes[axis] == 0
        if fits:
            spec[role.dim] = axis
        verb = "divides" if fits else f"of size {axes[axis]} does not divide"
        said.append(f"{role.words}, {axis} {verb} {'it' if role.units == 1 else 'them'}")
    elif axis != EXPERTS and role.dim is None:
        said.append(role.whole)
    if store is not None and axes[store] > 1 and store not in spec:
        stored = _in_store(role, shape, store, axes[store], spec)
        if stored is not None:
            spec[stored] = store
            said.append(f"dim {stored} ({shape[stored]}) over {store} in store")
    return tuple(spec), "; ".join(said)


def _in_store(role: Role, shape: Shape, store: str, size: int, spec: Spec | list[str | None]) -> int | None:
    if role.width is None:
        return None
    if spec[role.width] is None and shape[role.width] % size == 0:
        return role.width
    free = tuple(1 if spec[index] else dim for index, dim in enumerate(shape))
    split = shard_spec(free, store, size, first=role.stacked) if size > 1 else whole(shape)
    return split.index(store) if any(split) else None


def _stacked(variables: Mapping[str, Shape]) -> frozenset[str]:
    """Finds what lies below a path where every variable has one first dim, norms and an attention's kernels too."""
    below: dict[str, list[str]] = {}
    for path in variables:
        for owner in above(path):
            below.setdefault(owner, []).append(path)
    found: set[str] = set()
    for owner, paths in below.items():
        firsts = {variables[path][:1] if len(variables[path]) > 1 else () for path in paths}
        if len(firsts) != 1 or firsts == {()}:
            continue
        norms = any(_is_norm(path) and len(variables[path]) == 2 for path in paths)
        deep = any(path.endswith("/kernel") and path.count("/") > owner.count("/") + 2 for path in paths)
        if norms and deep:
            found.update(paths)
    return frozenset(found)


def _is_norm(path: str) -> bool:
    layer, _, name = path.rpartition("/")
    return bool(_NORM.search(layer.rpartition("/")[2].lower())) and name not in ("kernel", "embeddings")


def _by_place(free: Iterable[Layer], owners: Iterable[str]) -> dict[str, list[Layer]]:
    """Returns the dense layers below each path, without those inside an attention."""
    taken = set(owners)
    found = dict[str, list[Layer]]()
    for layer in free:
        places = list(above(layer.path))
        if not taken.intersection(places):
            for place_ in places:
                found.setdefault(place_, []).append(layer)
    return found


def _vocabulary(variables: Mapping[str, Shape], dense: Iterable[Layer]) -> dict[str, Role]:
    """Returns the roles of tables (V, D) of tokens, of their reverse (D, V) and of a head (D, V)."""
    found: dict[str, Role] = {}
    noun = VOCABULARY
    sizes = set()
    for path, shape in variables.items():
        layer, _, name = path.rpartition("/")
        said = tokens(layer.rpartition("/")[2])
        known = any(word.startswith(("embed", "token", "word", "vocab")) or word == "wte" for word in said)
        if name in _TABLES and len(shape) == 2 and known and not said & _OTHER_TABLES:
            found[path] = Role(noun, layer, shape[0], 0, width=1)
            sizes.add(shape[0])
    for path, shape in variables.items():
        layer, _, name = path.rpartition("/")
        if name == "reverse_embeddings" and len(shape) == 2:
            found[path] = Role(noun, layer, shape[1], 1, width=0)
    for layer_ in dense:
        width, size = layer_.shape
        if size in sizes and size != width:
            found[layer_.kernel] = Role(noun, layer_.path, size, 1, width=0)
            if layer_.bias is not None:
                found[layer_.bias_path] = Role(noun, layer_.path, size, 0)
    return found


def _adapters(variables: Mapping[str, Shape], roles: Mapping[str, Role]) -> dict[str, Role]:
    """Returns the roles of Keras's LoRA: A has a kernel's dims but the last, B its last (arXiv:2106.09685)."""
    found = {}
    for path, shape in variables.items():
        layer, _, name = path.rpartition("/")
        match = re.fullmatch(r"lora_(kernel|embeddings)_(a|b)", name)
        kernel = f"{layer}/{match[1]}" if match else ""
        if match is None or kernel not in roles:
            continue
        role = roles[kernel]
        last = len(variables[kernel]) - 1
        keeps_last = match[2] == "b"
        here = role.dim is not None and (role.dim == last) == keeps_last
        dim = None if not here else len(shape) - 1 if keeps_last else role.dim
        why = role.whole or f"its other half lies as {kernel} does"
        stored = None if (role.width == last) != keeps_last else len(shape) - 1 if keeps_last else role.width
        found[path] = replace(role, dim=dim, whole="" if here else why, width=stored, experts=None, adapter=True)
    return found
