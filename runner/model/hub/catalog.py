"""The classes of KerasHub and what they take, read from its source: nothing is imported, so a refusal is quick."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from runner.host import definition
from runner.host.versions import installed

PACKAGE = "keras_hub"
_PUBLIC = (f"{PACKAGE}.models", f"{PACKAGE}.layers")
_OF_EVERY_LAYER = ("dtype", "name", "trainable", "args", "kwargs")


@dataclass(frozen=True)
class Taken:
    """What a class takes, without what every layer of Keras does.

    Attributes:
      needed: keys without a default.
      known: all keys.
    """

    needed: tuple[str, ...]
    known: tuple[str, ...]


def is_installed() -> bool:
    """Tells whether KerasHub is there, without importing it."""
    return definition.source_of(_PUBLIC[0]) is not None


def version() -> str:
    """Returns the version that is installed."""
    return next(iter(installed(["keras-hub"]).values()), "")


@lru_cache(maxsize=1)
def public() -> dict[str, tuple[str, str]]:
    """Returns the public names of models and layers, each with the module that defines it and its name there."""
    found: dict[str, tuple[str, str]] = {}
    for module in reversed(_PUBLIC):
        for item in _tree(module).body:
            if isinstance(item, ast.ImportFrom) and item.module:
                found |= {one.asname or one.name: (item.module, one.name) for one in item.names}
    return found


def of_kind(base: str) -> tuple[str, ...]:
    """Returns the public names of classes whose names end so, or that inherit from a base of this name.

    Args:
      base: as `Backbone`.
    """
    return tuple(name for name in public() if name.endswith(base) and name != base)


def is_a(name: str, base: str) -> bool:
    """Tells whether a public class inherits from a base of this name."""
    return base in {found.name for _, found in _lineage(*public()[name])} - {name}


def taken(name: str) -> Taken | None:
    """Returns what a public class's constructor takes; None where its source does not tell."""
    for _, found in _lineage(*public()[name]):
        for item in found.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                return _arguments(item.args)
    return None


def position_limit(name: str) -> tuple[str, object] | None:
    """Returns the key of a public class that says how many places it learns vectors for, and its default.

    None where it learns none, or only as another key wants.
    """
    for _, found in _lineage(*public()[name]):
        for item in found.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                key = _of_positions(item)
                return None if key is None else (key, _defaults(item.args).get(key))
    return None


def _of_positions(made: ast.FunctionDef) -> str | None:
    """Returns the argument that a constructor gives an embedding of positions as its length, in every case."""
    calls = [item.value for item in made.body if isinstance(item, ast.Assign) and isinstance(item.value, ast.Call)]
    for call in calls:
        if ast.unparse(call.func).endswith("PositionEmbedding"):
            for told in call.keywords:
                if told.arg == "sequence_length" and isinstance(told.value, ast.Name):
                    return told.value.id
    return None


def _defaults(told: ast.arguments) -> dict[str, object]:
    """Returns the constants that arguments are without a value."""
    last = told.args[len(told.args) - len(told.defaults) :]
    pairs = [*zip(last, told.defaults, strict=True), *zip(told.kwonlyargs, told.kw_defaults, strict=True)]
    return {one.arg: default.value for one, default in pairs if isinstance(default, ast.Constant)}


@lru_cache(maxsize=1)
def presets() -> frozenset[str]:
    """Returns the names of the presets that KerasHub knows; none where its source does not tell."""
    source = definition.source_of(_PUBLIC[0])
    if source is None:
        return frozenset()
    files = sorted((source.parents[1] / "src" / "models").rglob("*_presets.py"))
    tables = [
        item.value
        for file in files
        for item in ast.parse(file.read_bytes()).body
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Dict)
    ]
    return frozenset(str(key.value) for table in tables for key in table.keys if isinstance(key, ast.Constant))


def _arguments(told: ast.arguments) -> Taken:
    positional = [one.arg for one in told.args][1:]
    needed = positional[: len(positional) - len(told.defaults)]
    for one, default in zip(told.kwonlyargs, told.kw_defaults, strict=True):
        positional.append(one.arg)
        if default is None:
            needed.append(one.arg)
    return Taken(*(tuple(name for name in names if name not in _OF_EVERY_LAYER) for names in (needed, positional)))


def _lineage(module: str, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yields a class and what it inherits from, as far as KerasHub defines it, by the first base each."""
    while module.startswith(PACKAGE):
        tree = _tree(module)
        found = next((item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == name), None)
        if found is None:
            return
        yield module, found
        if not found.bases:
            return
        base = ast.unparse(found.bases[0]).split(".")  # a class, or a class of a module
        imported = _imported(tree, base[0])
        if imported is not None:
            module = ".".join([imported[0], *([imported[1]] if len(base) > 1 else [])])
            name = base[-1] if len(base) > 1 else imported[1]
        elif len(base) == 1:  # of the same module
            name = base[0]
        else:  # Keras's own
            return


def _imported(tree: ast.Module, name: str) -> tuple[str, str] | None:
    """Returns from where a module imports a name, and what it is called there."""
    for item in tree.body:
        for one in item.names if isinstance(item, ast.ImportFrom) else []:
            if name == (one.asname or one.name) and isinstance(item, ast.ImportFrom):
                return item.module or "", one.name
    return None


@lru_cache(maxsize=64)
def _tree(module: str) -> ast.Module:
    source = definition.source_of(module)
    return ast.Module([], []) if source is None else ast.parse(source.read_bytes())
