"""Checks a builder named by `_target_` by reading its source, so that nothing heavy is imported to refuse it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from typing import Any

from runner.config.errors import ConfigError, did_you_mean, refuse
from runner.config.schema import ModelConfig
from runner.model import definition

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
    try:
        found = definition.find(config.target)
    except definition.UnreadableError as error:
        raise refuse(_KEY, config.target, allowed=str(error), mend="mend it") from error
    if found.kind == "function":
        assert found.arguments is not None
        _check_signature(config, name, found.arguments)
    elif found.kind != "unknown":  # what only the import can tell is checked before the builder is called
        raise _refuse(config.target, found)


def takes(config: ModelConfig, name: str) -> bool:
    """Tells whether a builder that `check` has passed takes a parameter; True where its source does not tell."""
    found = definition.find(config.target)
    if found.arguments is None:
        return True
    return found.arguments.kwarg is not None or name in [
        argument.arg for argument in (*found.arguments.args, *found.arguments.kwonlyargs)
    ]


def _refuse(path: str, found: definition.Found) -> ConfigError:
    module, _, name = path.rpartition(".")
    if found.kind == "no module":
        return refuse(_KEY, path, allowed=f"there is no module {found.where}", mend=_MEND)
    if found.kind == "compiled":
        mend = "name a function of Python that calls it"
        return refuse(
            _KEY, path, allowed=f"{found.where} has no Python source that tells what {name} takes", mend=mend
        )
    if found.kind == "value":
        return refuse(_KEY, path, allowed=f"{name} in {found.where} is not callable", mend=_MEND)
    hint = did_you_mean(name, list(found.names))
    return refuse(
        _KEY,
        path,
        allowed=f"module {module} has no {name!r}, it defines {', '.join(found.names) or 'no function'}",
        mend=hint if hint.startswith("did") else _MEND,
    )


def _check_signature(config: ModelConfig, name: str, arguments: ast.arguments) -> None:
    names = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]  # given by name
    if arguments.kwarg is None:
        for given in GIVEN:
            if given not in names:
                raise refuse(
                    _KEY,
                    config.target,
                    allowed=f"a builder takes {', '.join(GIVEN)}; this one takes "
                    f"{', '.join([*(one.arg for one in arguments.posonlyargs), *names]) or 'nothing'}",
                    mend=f"write def {name}(keras, input_shape, num_classes, ...)",
                )
        options = [name for name in names if name not in GIVEN and name != LAYOUTS]
        for key in config.options:
            if key not in options:
                raise ConfigError(
                    f"model.{key} is refused: {config.target} takes {', '.join(options) or 'no options'}; "
                    f"{did_you_mean(key, options)}"
                )
    by_place = [argument.arg for argument in arguments.posonlyargs]
    positional = [*by_place, *(argument.arg for argument in arguments.args)]
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    for name in required:
        if name in by_place:
            raise refuse(
                _KEY, config.target, allowed=f"{name} has no name to be given by", mend="drop the / behind it"
            )
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
