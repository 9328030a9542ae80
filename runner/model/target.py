"""Checks a builder named by `_target_` by reading its source, so that nothing heavy is imported to refuse it."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, did_you_mean, refuse
from runner.schema import ModelConfig

GIVEN = ("keras", "input_shape", "num_classes")
LAYOUTS = "layouts"
_KEY = "model._target_"
_MEND = "name a function as package.module.function; its module lies on the Python path or in the current directory"


def check(config: ModelConfig) -> None:
    """Checks that the builder is there, callable, and takes the options given to it.

    Raises:
      ConfigError: no such module or name, not callable, or options that the builder's signature refuses.
    """
    module, _, name = config.target.rpartition(".")
    if not module or not all(part.isidentifier() for part in config.target.split(".")):
        raise refuse(_KEY, config.target or "''", allowed="an import path with a dot", mend=_MEND)
    source = _source(config.target, module)
    if source is None:  # no Python source: only the import itself can tell
        return
    try:
        tree = ast.parse(source.read_bytes(), filename=str(source))
    except SyntaxError as error:
        raise refuse(
            _KEY, config.target, allowed=f"{source.name} must parse ({error.msg}, line {error.lineno})", mend="mend it"
        ) from error
    node = _definition(tree, name)
    if isinstance(node, ast.FunctionDef):
        if not node.decorator_list:  # a decorator may change the signature
            _check_signature(config, node)
    elif isinstance(node, ast.Constant | ast.Dict | ast.List | ast.Tuple | ast.Set):
        raise refuse(_KEY, config.target, allowed=f"{name} in {source.name} is not callable", mend=_MEND)
    elif node is None:
        names = [item.name for item in tree.body if isinstance(item, ast.FunctionDef | ast.ClassDef)]
        hint = did_you_mean(name, names)
        raise refuse(
            _KEY,
            config.target,
            allowed=f"module {module} has no {name!r}, it defines {', '.join(names) or 'no function'}",
            mend=hint if hint.startswith("did") else _MEND,
        )


def _source(path: str, module: str) -> Path | None:
    """Returns the module's source file; None for a module that has none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise refuse(_KEY, path, allowed=f"module {module} does not import ({error})", mend=_MEND) from error
    if spec is None:
        raise refuse(_KEY, path, allowed=f"there is no module {module}", mend=_MEND)
    if spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        return None
    return Path(spec.origin)


def _definition(tree: ast.Module, name: str) -> ast.AST | None:
    """Returns what the module binds `name` to, as far as the source shows; the tree itself where it can't tell."""
    found: ast.AST | None = None
    for item in tree.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and item.name == name:
            found = item
        elif isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                found = item.value
            elif any(isinstance(each, ast.Tuple | ast.List) and name in _names(each) for each in targets):
                found = tree
        elif isinstance(item, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" or (alias.asname or alias.name) == name for alias in item.names):
                found = item
        elif isinstance(item, ast.If | ast.Try | ast.With | ast.For | ast.While):
            found = tree if name in _names(item) else found
        elif isinstance(item, ast.FunctionDef) and item.name == "__getattr__":
            found = found or tree
    return found


def _names(node: ast.AST) -> set[str]:
    """Returns every name that code inside a node may bind, and `name` for `import ... as name`."""
    found = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Name):
            found.add(item.id)
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(item.name)
        elif isinstance(item, ast.alias):
            found.add((item.asname or item.name).partition(".")[0])
    return found


def _check_signature(config: ModelConfig, node: ast.FunctionDef) -> None:
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if arguments.kwarg is None:
        for given in GIVEN:
            if given not in names:
                raise refuse(
                    _KEY,
                    config.target,
                    allowed=f"a builder takes {', '.join(GIVEN)}; this one takes {', '.join(names) or 'nothing'}",
                    mend=f"write def {node.name}(keras, input_shape, num_classes, ...)",
                )
        options = [name for name in names if name not in GIVEN and name != LAYOUTS]
        for key in config.options:
            if key not in options:
                raise ConfigError(
                    f"model.{key} is refused: {config.target} takes {', '.join(options) or 'no options'}; "
                    f"{did_you_mean(key, options)}"
                )
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    for name in required:
        if name not in GIVEN and name != LAYOUTS and name not in config.options:
            raise ConfigError(
                f"model.{name} is refused: it has no value and {config.target} needs it; add +model.{name}=..."
            )
    for argument in (*arguments.args, *arguments.kwonlyargs):
        if argument.arg in config.options and argument.annotation is not None:
            _check_type(argument.arg, config.options[argument.arg], ast.unparse(argument.annotation))


_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def _check_type(name: str, value: Any, annotation: str) -> None:
    """Checks a value against the plain annotations; one that it does not know passes."""
    kinds = [part.strip() for part in annotation.split("|")]
    known = [kind for kind in kinds if kind == "None" or _element(kind) in _SCALARS]
    if len(known) == len(kinds) and not any(_matches(value, kind) for kind in kinds):
        raise refuse(f"model.{name}", value, allowed=f"a value of type {annotation}", mend=f"set model.{name} to one")
    # A list of whole numbers is one of sizes, and no layer has a size below 1.
    sizes = isinstance(value, list) and any(_element(kind) == "int" for kind in kinds)
    if sizes and any(number < 1 for number in value):
        raise refuse(f"model.{name}", value, allowed="sizes of at least 1", mend=f"set model.{name}=[128]")


def _element(kind: str) -> str:
    for prefix in ("list[", "Sequence[", "tuple["):
        if kind.startswith(prefix) and kind.endswith("]"):
            return kind[len(prefix) : -1].removesuffix(", ...")
    return kind


def _matches(value: Any, kind: str) -> bool:
    if kind == "None":
        return value is None
    element = _element(kind)
    if element != kind:
        return isinstance(value, list) and all(_matches(each, element) for each in value)
    return isinstance(value, _SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))


def is_own(config: ModelConfig) -> bool:
    """Tells whether a builder is one of this package's, not a user's."""
    return config.target.startswith("runner.")


def load(path: str) -> Callable[..., Any]:
    """Imports a builder.

    Args:
      path: import path that `check` has passed.

    Raises:
      ConfigError: the import fails, or what it finds is not callable.
    """
    module, _, name = path.rpartition(".")
    try:
        builder = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a user's module raises at import
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise refuse(_KEY, path, allowed=f"it does not import ({reason})", mend="mend that module") from error
    if not callable(builder):
        raise refuse(_KEY, path, allowed=f"{name} is not callable", mend=_MEND)
    typed: Callable[..., Any] = builder
    return typed
