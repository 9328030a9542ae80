"""States, batches and outputs as pytrees: their arrays by path on the host, and back on devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .rounding import Array

Tree = Any
Arrays = dict[str, Array]
Place = Callable[[Tree], Tree]
# Names of leaves, or of what they are below of, or a function that says of a path whether it is one.
Select = str | Sequence[str] | Callable[[str], bool]


def named(tree: Tree, name: str) -> dict[str, Any]:
    """Returns the leaves of a pytree by path, `params/dense/kernel`; a tree that is one leaf has the given name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    found = {}
    for path, leaf in leaves:
        found[jax.tree_util.keystr(path, simple=True, separator="/") or name] = leaf
    if len(found) < len(leaves):
        found = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    return found


def host(tree: Tree, name: str, *, copied: bool = True, merge: np.ufunc | None = None, whole: bool = False) -> Arrays:
    """Returns a pytree's arrays and numbers on the host by path; complex ones by parts, (..., 2), unless `whole`.

    `copied` where a step may donate their buffers. `merge` makes one array of the copies of all devices; None: the
    first copy is returned.
    """
    found = {}
    for path, leaf in named(tree, name).items():
        if is_array(leaf):
            value = _value(leaf, copied, merge)
            found[path] = _joined(leaf, value) if whole else value
    return found


def unequal_copies(tree: Tree, name: str) -> list[str]:
    """Returns the leaves of which devices have different copies, as their sharding says that they have not.

    JAX reads the first copy alone, and a `shard_map` with `check_vma=False` does not check what it returns.
    """
    found = []
    for path, leaf in named(tree, name).items():
        if isinstance(leaf, jax.Array) and not _are_equal(_data(leaf).addressable_shards):
            found.append(path)
    return found


def _are_equal(shards: Sequence[Any]) -> bool:
    """Returns whether shards of the same place have the same bits."""
    first: dict[str, Array] = {}
    for shard in shards:
        value = np.asarray(shard.data)
        kept = first.setdefault(str(shard.index), value)
        if kept is not value and kept.tobytes() != value.tobytes():
            return False
    return True


def with_values(tree: Tree, values: Mapping[str, Array], name: str, device: jax.Device | None = None) -> Tree:
    """Returns a pytree with new arrays of these values, each where the tree's own is, or on one device."""
    leaves = []
    for path, leaf in named(tree, name).items():
        if is_array(leaf):
            leaf = _with_value(leaf, values[path], device)
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def on_host(tree: Tree, values: Mapping[str, Array], name: str) -> Tree:
    """Returns a pytree whose arrays are NumPy's, for a user's own `place`; random keys stay JAX's."""
    leaves = []
    for path, leaf in named(tree, name).items():
        value = values.get(path, leaf)
        if is_key(leaf):
            value = _with_value(leaf, value, None)
        elif path in values:
            value = _joined(leaf, value)
        leaves.append(value)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def is_array(leaf: object) -> bool:
    """Returns whether a leaf is an array, a number or a random key."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def is_key(leaf: object) -> bool:
    """Returns whether a leaf is an array of JAX's typed random keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def owner(path: str, leaves: Collection[str]) -> str:
    """Returns the leaf of the state that a gradient is of: the only one whose path ends with its own."""
    if path in leaves:
        return path
    found = [leaf for leaf in leaves if leaf.endswith(f"/{path}")]
    # Of several, as with the slots of an optimizer, the shortest path: `params/w` and `opt_state/0/mu/w`.
    return min(found, key=lambda leaf: leaf.count("/"), default=path)


def selected(paths: Sequence[str], parameters: Select) -> list[str]:
    """Returns the paths that `parameters` names, or what they are below of, or selects.

    Raises:
      ValueError: it selects none.
    """
    if isinstance(parameters, str):
        parameters = [parameters]
    if callable(parameters):
        found = list(filter(parameters, paths))
    else:
        starts = tuple(f"{name}/" for name in parameters)
        found = [path for path in paths if f"{path}/".startswith(starts)]
    if not found:
        raise ValueError(f"parameters selects none of the state's float leaves, such as {', '.join(paths[:5])}")
    return found


def comparable(arrays: Mapping[str, Array]) -> Arrays:
    """Returns arrays in the dtypes that are compared: float32 of lower floats, complex numbers by parts."""
    found = {}
    for path, value in arrays.items():
        if value.dtype == bool:
            value = value.astype(np.int8)
        elif value.dtype.kind == "c":
            value = _parts(value)
        elif jnp.issubdtype(value.dtype, np.floating) and value.dtype.kind != "f":
            value = value.astype(np.float32)
        found[path] = value
    return found


def is_float(value: Array) -> bool:
    """Returns whether an array has real numbers of any precision."""
    return bool(jnp.issubdtype(value.dtype, np.floating))


def difference_of(expected: Tree, actual: Tree, name: str) -> str:
    """Returns how a pytree's structure, shapes or dtypes differ from an expected one's; empty: not at all."""
    wanted = named(expected, name)
    found = named(actual, name)
    missing = [path for path in wanted if path not in found]
    others = [path for path in found if path not in wanted]
    if missing and others:
        return f"has {others[0]}, and no {missing[0]}"
    if missing or others:
        return f"has no {missing[0]}" if missing else f"has {others[0]} in addition"
    for path, leaf in wanted.items():
        kind = _kind(found[path])
        if kind != _kind(leaf):
            return f"has {path} as {kind}, not {_kind(leaf)}"
    if jax.tree.structure(expected) != jax.tree.structure(actual):
        return f"is {jax.tree.structure(actual)}, not {jax.tree.structure(expected)}"
    return ""


def _kind(leaf: object) -> str:
    if not is_array(leaf):
        return "another object"
    if is_key(leaf):
        assert isinstance(leaf, jax.Array)
        return f"{leaf.dtype}{list(leaf.shape)}"
    # As a jitted function sees it: 64 bits become 32 by default.
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    return f"{jax.dtypes.canonicalize_dtype(array.dtype)}{list(array.shape)}"


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _value(leaf: Any, copied: bool, merge: np.ufunc | None) -> Array:
    leaf = _data(leaf)
    array = np.array(leaf, copy=copied or None)
    # Floats of 64 bits, NumPy's default, become 32 on a device, unless JAX is configured otherwise.
    if array.dtype.kind in "fc":
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    array = _parts(array)
    if merge is not None and isinstance(leaf, jax.Array):
        for shard in leaf.addressable_shards:
            array[shard.index] = merge(array[shard.index], _parts(np.asarray(shard.data)))
    return array


def _parts(array: Array) -> Array:
    return np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else array


def _joined(leaf: Any, value: Array) -> Array:
    """Returns the value of a leaf from its parts, bit for bit, if it is complex."""
    if not np.iscomplexobj(leaf):
        return value
    return np.ascontiguousarray(value).view(np.result_type(value, np.complex64))[..., 0]


def _with_value(leaf: Any, value: Array, device: jax.Device | None) -> Any:
    value = _joined(leaf, value)
    if isinstance(leaf, bool | int | float | complex):
        return type(leaf)(value.item())
    if not isinstance(leaf, jax.Array):
        return np.array(value)
    placed = device or leaf.sharding
    if is_key(leaf):
        return jax.device_put(jax.random.wrap_key_data(jnp.array(value), impl=jax.random.key_impl(leaf)), placed)
    return jax.device_put(np.array(value), placed)
