"""Checks what an import path of the config names by reading its source: nothing heavy is imported to refuse it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from runner.config.schema import ModelConfig
from runner.errors import ConfigError, did_you_mean, refuse
from runner.host import definition

GIVEN = ("keras", "inputs", "outputs", "input_shape", "num_classes", "tokens")  # a builder takes those it names
LAYOUTS = "layouts"
_KEY = "model._target_"
_MEND = "name it as package.module.name; its module lies on the Python path or in the current directory"


def check(config: ModelConfig) -> None:
    """Checks that the builder is there, callable, and takes the options given to it.

    Raises:
      ConfigError: no such module or name, not callable, or options that the builder's signature refuses.
    """
    found = look_up(_KEY, config.target)
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
    arguments = look_up(key, path).arguments
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


def look_up(key: str, path: str, *, compiled: bool = False) -> definition.Found:
    """Returns what a path leads to: something callable, or what only the import can tell, which is checked when used.

    Args:
      key: the config key that names it.
      path: import path.
      compiled: takes what has no Python source, too.

    Raises:
      ConfigError: no import path, no such module or name, a module that does not parse, or nothing callable.
    """
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise refuse(key, path or "''", allowed="an import path with a dot", mend=_MEND)
    try:
        found = definition.find(path)
    except definition.UnreadableError as error:
        raise refuse(key, path, allowed=str(error), mend="mend it") from error
    mend = _MEND
    if found.kind == "no module":
        allowed = f"there is no module {found.where}"
    elif found.kind == "missing":
        allowed = f"module {module} has no {name!r}, it defines {', '.join(found.names) or 'no function'}"
        mend = did_you_mean(name, found.names, _MEND)
    elif found.kind == "value":
        allowed = f"{name} in {found.where} is not callable"
    elif found.kind == "compiled" and not compiled:
        allowed = f"{found.where} has no Python source that tells what {name} takes"
        mend = "name a function of Python that calls it"
    else:
        return found
    raise refuse(key, path, allowed=allowed, mend=mend)


def check_options(
    group: str,
    path: str,
    arguments: ast.arguments,
    options: Collection[str],
    given: Collection[str] = (),
    write: str = "add +{group}.{name}=...",
) -> None:
    """Checks that a function takes the options that the config has for it, and gets all that it needs.

    Args:
      group: the key that the options stand under, as `dataset`.
      path: the function's import path.
      arguments: its parameters.
      options: names that it is given by the config.
      given: parameters that it is given besides.
      write: what gives it an option, with `group` and `name` in braces.

    Raises:
      ConfigError: names the option.
    """
    named = [one.arg for one in (*arguments.args, *arguments.kwonlyargs) if one.arg not in given]
    for name in options:
        if name not in named and arguments.kwarg is None:
            takes = ", ".join(named) or "no options"
            raise ConfigError(f"{group}.{name} is refused: {path} takes {takes}; {did_you_mean(name, named)}")
    for name in _required(arguments):
        if name not in options and name not in given:
            mend = write.format(group=group, name=name)
            raise ConfigError(f"{group}.{name} is refused: it has no value and {path} needs it; {mend}")


def _required(arguments: ast.arguments) -> list[str]:
    """Returns the names of the parameters without a default."""
    positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return positional[: len(positional) - len(arguments.defaults)] + [a.arg for a, value in named if value is None]


def takes(config: ModelConfig, name: str) -> bool:
    """Tells whether a builder that `check` has passed takes a parameter; True where its source does not tell."""
    found = definition.find(config.target)
    if found.arguments is None:
        return True
    return found.arguments.kwarg is not None or name in [
        argument.arg for argument in (*found.arguments.args, *found.arguments.kwonlyargs)
    ]


def _check_signature(config: ModelConfig, name: str, arguments: ast.arguments) -> None:
    by_place = [argument.arg for argument in arguments.posonlyargs]
    by_name = (*arguments.args, *arguments.kwonlyargs)
    names = [argument.arg for argument in by_name]
    if arguments.kwarg is None:
        inputs, outputs = ("inputs", "input_shape"), ("outputs", "num_classes")
        if "keras" not in names or not {*inputs} & {*names} or not {*outputs} & {*names}:
            raise refuse(
                _KEY,
                config.target,
                allowed=f"a builder takes keras, {' or '.join(inputs)}, and {' or '.join(outputs)}; this one takes "
                f"{', '.join([*by_place, *names]) or 'nothing'}",
                mend=f"write def {name}(keras, inputs, outputs, ...)",
            )
    for one in _required(arguments):
        if one in by_place:
            raise refuse(_KEY, config.target, allowed=f"{one} has no name to be given by", mend="drop the / behind it")
    check_options("model", config.target, arguments, config.options, (*GIVEN, LAYOUTS))
    for argument in by_name:
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
