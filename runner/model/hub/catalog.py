"""Classes of KerasHub and their parameters, read from its source: nothing is imported, so that an error is quick."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from runner.host import definition
from runner.host.versions import installed

PACKAGE = "keras_hub"
_MODELS = f"{PACKAGE}.models"
_LAYERS = f"{PACKAGE}.layers"

# Parameters of every Keras layer. The run sets them, not the config.
_LAYER_PARAMETERS = ("dtype", "name", "trainable", "args", "kwargs")


@dataclass(frozen=True)
class Parameters:
    """Parameters of a class's constructor, without those of every Keras layer.

    Attributes:
      required: names without a default.
      names: all names.
    """

    required: tuple[str, ...]
    names: tuple[str, ...]


def is_installed() -> bool:
    """Returns whether KerasHub is installed, without importing it."""
    return definition.source_of(_MODELS) is not None


def version() -> str:
    """Returns the installed version; empty if there is none."""
    return next(iter(installed(["keras-hub"]).values()), "")


@lru_cache(maxsize=1)
def public() -> dict[str, tuple[str, str]]:
    """Returns public name -> (module, name there) of KerasHub's models and layers."""
    classes: dict[str, tuple[str, str]] = {}
    # Models last: a model wins over a layer of the same name.
    for module in (_LAYERS, _MODELS):
        for statement in _tree(module).body:
            if isinstance(statement, ast.ImportFrom) and statement.module:
                for alias in statement.names:
                    classes[alias.asname or alias.name] = (statement.module, alias.name)
    return classes


def of_kind(base: str) -> tuple[str, ...]:
    """Returns the public names that end with the name of a base class.

    Args:
      base: for example `Backbone`.
    """
    return tuple(name for name in public() if name.endswith(base) and name != base)


def is_backbone(name: str) -> bool:
    """Returns whether a public class inherits from `Backbone`."""
    return name != "Backbone" and any(ancestor.name == "Backbone" for _, ancestor in _lineage(name))


def parameters(name: str) -> Parameters | None:
    """Returns the parameters of a public class's constructor.

    Returns None if its source has none.
    """
    constructor = _constructor(name)
    if constructor is None:
        return None
    arguments = constructor.args
    names = [argument.arg for argument in arguments.args][1:]
    required = names[: len(names) - len(arguments.defaults)]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        names.append(argument.arg)
        if default is None:
            required.append(argument.arg)
    return Parameters(_without_layer_parameters(required), _without_layer_parameters(names))


def _without_layer_parameters(names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in _LAYER_PARAMETERS)


def position_limit(name: str) -> tuple[str, object] | None:
    """Returns the parameter for the number of learned positions, and its default.

    Returns None if the class learns no positions, or only with certain other arguments.
    """
    constructor = _constructor(name)
    if constructor is None:
        return None
    parameter = _position_parameter(constructor)
    if parameter is None:
        return None
    return parameter, _constant_defaults(constructor.args).get(parameter)


def _constructor(name: str) -> ast.FunctionDef | None:
    """Returns the constructor of a public class, its own or an inherited one."""
    for _, class_definition in _lineage(name):
        for statement in class_definition.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                return statement
    return None


def _position_parameter(constructor: ast.FunctionDef) -> str | None:
    """Returns the parameter that is the length of a position embedding.

    A constructor must pass it unconditionally.
    """
    # Only statements at the top of the constructor: one below an `if` runs only with certain arguments.
    for statement in constructor.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        call = statement.value
        if not ast.unparse(call.func).endswith("PositionEmbedding"):
            continue
        for keyword in call.keywords:
            if keyword.arg == "sequence_length" and isinstance(keyword.value, ast.Name):
                return keyword.value.id
    return None


def _constant_defaults(arguments: ast.arguments) -> dict[str, object]:
    """Returns the defaults that are constants, by parameter."""
    with_default = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    pairs: list[tuple[ast.arg, ast.expr | None]] = [*zip(with_default, arguments.defaults, strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    defaults: dict[str, object] = {}
    for argument, default in pairs:
        if isinstance(default, ast.Constant):
            defaults[argument.arg] = default.value
    return defaults


@lru_cache(maxsize=1)
def presets() -> frozenset[str]:
    """Returns the names of KerasHub's presets; empty if its source has none."""
    source = definition.source_of(_MODELS)
    if source is None:
        return frozenset()
    names: set[str] = set()
    # Each model family lists its presets as dicts, name -> description, in a module of its own.
    for file in sorted((source.parents[1] / "src" / "models").rglob("*_presets.py")):
        for statement in ast.parse(file.read_bytes()).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
                for key in statement.value.keys:
                    if isinstance(key, ast.Constant):
                        names.add(str(key.value))
    return frozenset(names)


def _lineage(public_name: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yields (module, definition) of a public class and its ancestors.

    Follows the first bases, within KerasHub.
    """
    module, name = public()[public_name]
    while module.startswith(PACKAGE):
        tree = _tree(module)
        class_definition = _class_in(tree, name)
        if class_definition is None:
            return
        yield module, class_definition
        if not class_definition.bases:
            return
        # The base is written `Name`, or `module.Name`.
        first, *rest = ast.unparse(class_definition.bases[0]).split(".")
        imported = _imported(tree, first)
        if imported is None:
            if rest:
                # An attribute of a module that is imported as a whole: Keras's own class.
                return
            # A class of the same module.
            name = first
        elif rest:
            module = f"{imported[0]}.{imported[1]}"
            name = rest[-1]
        else:
            module, name = imported


def _class_in(tree: ast.Module, name: str) -> ast.ClassDef | None:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return statement
    return None


def _imported(tree: ast.Module, name: str) -> tuple[str, str] | None:
    """Returns the module that a name is imported from, and its name there."""
    for statement in tree.body:
        if not isinstance(statement, ast.ImportFrom):
            continue
        for alias in statement.names:
            if name == (alias.asname or alias.name):
                return statement.module or "", alias.name
    return None


# Room for a few dozen classes and their ancestors, more than one config describes.
@lru_cache(maxsize=64)
def _tree(module: str) -> ast.Module:
    """Returns a module's syntax tree; an empty one if there is no source."""
    source = definition.source_of(module)
    if source is None:
        return ast.Module([], [])
    return ast.parse(source.read_bytes())
