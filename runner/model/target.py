"""Checks a builder named by `_target_` by reading its source, so that nothing heavy is imported to refuse it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from runner.config.errors import ConfigError, did_you_mean, refuse
from runner.config.schema import ModelConfig
from runner.model import definition

GIVEN = (
    "keras",
    "inputs",
    "outputs",
    "input_shape",
    "num_classes",
)  # a builder takes those it names
LAYOUTS = "layouts"
_KEY = "model._target_"
_MEND = "name a function as package.module.function; its module lies on the Python path or in the current directory"


def check(config: ModelConfig) -> None:
    """Checks that the builder is there, callable, and takes the options given to it.

    Raises:
      ConfigError: no such module or name, not callable, or options that the builder's signature refuses.
    """
    found = _found(_KEY, config.target)
    if found.arguments is not None:
        _check_signature(config, config.target.rpartition(".")[2], found.arguments)


def check_function(key: str, path: str, parameters: Sequence[str]) -> None:
    """Checks a user's function that is called with so many arguments, in order.

    Args:
      key: the config key that names it.
      path: import path.
      parameters: what it is given, in words of one.

    Raises:
      ConfigError: no such module or name, not callable, or it takes others.
    """
    arguments = _found(key, path).arguments
    if arguments is None:
        return
    taken = [*arguments.posonlyargs, *arguments.args]
    wanted, required = len(parameters), len(taken) - len(arguments.defaults)
    named = [a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    if required > wanted or (len(taken) < wanted and arguments.vararg is None) or named:
        raise refuse(
            key,
            path,
            allowed=f"a function that takes {', '.join(parameters)}; this one takes "
            f"{', '.join([*(one.arg for one in taken), *named]) or 'nothing'}",
            mend=f"write def {path.rpartition('.')[2]}({', '.join(parameters)})",
        )


def _found(key: str, path: str) -> definition.Found:
    """Returns what a path leads to, a function or what only the import can tell, which is checked as it is called."""
    if "." not in path or not all(part.isidentifier() for part in path.split(".")):
        raise refuse(key, path or "''", allowed="an import path with a dot", mend=_MEND)
    try:
        found = definition.find(path)
    except definition.UnreadableError as error:
        raise refuse(key, path, allowed=str(error), mend="mend it") from error
    if found.kind not in ("function", "unknown"):
        raise _refuse(key, path, found)
    return found


def takes(config: ModelConfig, name: str) -> bool:
    """Tells whether a builder that `check` has passed takes a parameter; True where its source does not tell."""
    found = definition.find(config.target)
    if found.arguments is None:
        return True
    return found.arguments.kwarg is not None or name in [
        argument.arg for argument in (*found.arguments.args, *found.arguments.kwonlyargs)
    ]


def _refuse(key: str, path: str, found: definition.Found) -> ConfigError:
    module, _, name = path.rpartition(".")
    if found.kind == "no module":
        return refuse(key, path, allowed=f"there is no module {found.where}", mend=_MEND)
    if found.kind == "compiled":
        mend = "name a function of Python that calls it"
        return refuse(key, path, allowed=f"{found.where} has no Python source that tells what {name} takes", mend=mend)
    if found.kind == "value":
        return refuse(key, path, allowed=f"{name} in {found.where} is not callable", mend=_MEND)
    hint = did_you_mean(name, list(found.names))
    return refuse(
        key,
        path,
        allowed=f"module {module} has no {name!r}, it defines {', '.join(found.names) or 'no function'}",
        mend=hint if hint.startswith("did") else _MEND,
    )


def _check_signature(config: ModelConfig, name: str, arguments: ast.arguments) -> None:
    names = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]  # given by name
    if arguments.kwarg is None:
        inputs, outputs = ("inputs", "input_shape"), ("outputs", "num_classes")
        if "keras" not in names or not {*inputs} & {*names} or not {*outputs} & {*names}:
            raise refuse(
                _KEY,
                config.target,
                allowed=f"a builder takes keras, {' or '.join(inputs)}, and {' or '.join(outputs)}; this one takes "
                f"{', '.join([*(one.arg for one in arguments.posonlyargs), *names]) or 'nothing'}",
                mend=f"write def {name}(keras, inputs, outputs, ...)",
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


def load(path: str, key: str = _KEY) -> Callable[..., Any]:
    """Imports a builder, or another function that the config names.

    Args:
      path: import path that has been checked.
      key: the config key that names it.

    Raises:
      ConfigError: the import fails, or what it finds is not callable.
    """
    module, _, name = path.rpartition(".")
    try:
        builder = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a user's module raises at import
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise refuse(key, path, allowed=f"it does not import ({reason})", mend="mend that module") from error
    if not callable(builder):
        raise refuse(key, path, allowed=f"{name} is not callable", mend=_MEND)
    typed: Callable[..., Any] = builder
    return typed
