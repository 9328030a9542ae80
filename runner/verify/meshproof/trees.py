"""States, batches and outputs as pytrees: their arrays by path on the host, and back on devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") or name for path, _ in leaves]
    if len(set(paths)) < len(paths):
        paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    return dict(zip(paths, (leaf for _, leaf in leaves), strict=True))


def host(tree: Tree, name: str) -> Arrays:
    """Returns copies of a pytree's arrays and numbers on the host by path, without other leaves, such as functions."""
    return {path: _value(leaf) for path, leaf in named(tree, name).items() if is_array(leaf)}


def with_values(tree: Tree, values: Mapping[str, Array], name: str, device: jax.Device | None = None) -> Tree:
    """Returns a pytree with new arrays of these values, each where the tree's own is, or on one device."""
    leaves = []
    for path, leaf in named(tree, name).items():
        leaves.append(_with_value(leaf, values[path], device) if is_array(leaf) else leaf)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def on_host(tree: Tree, values: Mapping[str, Array], name: str) -> Tree:
    """Returns a pytree whose arrays are NumPy's, for a user's own `place`; random keys stay JAX's."""
    leaves = []
    for path, leaf in named(tree, name).items():
        value = _with_value(leaf, values[path], None) if is_key(leaf) else values.get(path, leaf)
        leaves.append(value)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def is_array(leaf: object) -> bool:
    """Returns whether a leaf is an array, a number or a random key."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def is_key(leaf: object) -> bool:
    """Returns whether a leaf is an array of JAX's typed random keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def keyed(prefix: str, arrays: Mapping[str, Array]) -> Arrays:
    """Returns arrays with a prefix before their paths."""
    return {f"{prefix}/{path}": value for path, value in arrays.items()}


def owner(path: str, leaves: Iterable[str]) -> str:
    """Returns the leaf of the state that a gradient is of: the only one whose path ends with its own."""
    found = [leaf for leaf in leaves if leaf == path or leaf.endswith(f"/{path}")]
    exact = [leaf for leaf in found if leaf == path]
    # Of several, as with the slots of an optimizer, the shortest path: `params/w` and `opt_state/0/mu/w`.
    return (exact or sorted(found, key=lambda leaf: leaf.count("/")) or [path])[0]


def selected(paths: Sequence[str], parameters: Select) -> list[str]:
    """Returns the paths that `parameters` names, or what they are below of, or selects.

    Raises:
      ValueError: it selects none.
    """
    names = [parameters] if isinstance(parameters, str) else parameters
    if callable(names):
        found = [path for path in paths if names(path)]
    else:
        found = [path for path in paths if any(f"{path}/".startswith(f"{name}/") for name in names)]
    if not found:
        raise ValueError(f"parameters selects none of the state's float leaves, such as {', '.join(paths[:5])}")
    return found


def comparable(arrays: Mapping[str, Array]) -> Arrays:
    """Returns arrays in the dtypes that are compared: float32 of lower floats, complex numbers as pairs."""
    found = {}
    for path, value in arrays.items():
        if value.dtype == bool:
            value = value.astype(np.int8)
        elif jnp.issubdtype(value.dtype, np.complexfloating):
            value = np.stack([value.real, value.imag])
        elif jnp.issubdtype(value.dtype, np.floating) and value.dtype.kind != "f":
            value = value.astype(np.float32)
        found[path] = value
    return found


def is_float(value: Array) -> bool:
    """Returns whether an array has real numbers of any precision."""
    return bool(jnp.issubdtype(value.dtype, np.floating))


def difference_of(expected: Tree, actual: Tree, name: str) -> str:
    """Returns how a pytree's structure, shapes or dtypes differ from an expected one's; empty: not at all."""
    wanted, found = named(expected, name), named(actual, name)
    missing = [f"has no {path}" for path in wanted if path not in found]
    added = [f"has {path} in addition" for path in found if path not in wanted]
    if missing or added:
        return (missing + added)[0]
    for path, leaf in wanted.items():
        kinds = _kind(leaf), _kind(found[path])
        if kinds[0] != kinds[1]:
            return f"has {path} as {kinds[1]}, not {kinds[0]}"
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


def _value(leaf: Any) -> Array:
    # A copy: a step may donate the buffer. Floats of 64 bits, NumPy's default, become 32 on a device, unless JAX is
    # told otherwise.
    array = np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf)
    if array.dtype.kind in "fc":
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    return array


def _with_value(leaf: Any, value: Array, device: jax.Device | None) -> Any:
    if is_key(leaf):
        made = jax.random.wrap_key_data(jnp.array(value), impl=jax.random.key_impl(leaf))
        return jax.device_put(made, device if device is not None else leaf.sharding)
    if isinstance(leaf, bool | int | float | complex):
        return type(leaf)(value.item())
    if isinstance(leaf, jax.Array):
        return jax.device_put(np.array(value), device if device is not None else leaf.sharding)
    return np.array(value)
