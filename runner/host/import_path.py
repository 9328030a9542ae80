"""Import paths of user code: checked by reading the source before anything is imported, and imported when used."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import definition

_FIX = "write it as package.module.name; the module must be on the Python path or in the current directory"


def check_function(key: str, path: str, parameters: Sequence[str]) -> None:
    """Checks a user's function that is called with these positional arguments.

    Args:
      key: the config key with the path.
      path: import path.
      parameters: names of the arguments, in order.

    Raises:
      ConfigError: no such module or name, not callable, or it takes other arguments.
    """
    arguments = look_up(key, path).arguments
    if arguments is None:
        return
    positional = [*arguments.posonlyargs, *arguments.args]
    required_count = len(positional) - len(arguments.defaults)
    required_by_name = _required_keywords(arguments)
    takes_fewer = len(positional) < len(parameters) and arguments.vararg is None
    if required_count > len(parameters) or takes_fewer or required_by_name:
        own_parameters = [*(argument.arg for argument in positional), *required_by_name]
        raise invalid(
            key,
            path,
            problem=f"must be a function that takes {', '.join(parameters)}; this one takes "
            f"{', '.join(own_parameters) or 'nothing'}",
            fix=f"write def {path.rpartition('.')[2]}({', '.join(parameters)})",
        )


def look_up(key: str, path: str, *, compiled: bool = False) -> definition.Found:
    """Returns the definition that a path leads to; one that only the import can tell is checked when it is used.

    Args:
      key: the config key with the path.
      path: import path.
      compiled: whether a callable without Python source is allowed.

    Raises:
      ConfigError: no import path, no such module or name, a module that does not parse, or nothing callable.
    """
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise invalid(key, path or "''", problem="must be an import path with a dot", fix=_FIX)
    try:
        found = definition.find(path)
    except definition.UnreadableError as error:
        raise invalid(key, path, problem=str(error), fix="correct that line") from error
    fix = _FIX
    if found.kind == "no module":
        problem = f"there is no module {found.where}"
    elif found.kind == "missing":
        problem = f"module {module} has no {name!r}, it defines {', '.join(found.names) or 'no function'}"
        fix = did_you_mean(name, found.names, _FIX)
    elif found.kind == "value":
        problem = f"{name} in {found.where} is not callable"
    elif found.kind == "compiled" and not compiled:
        problem = f"{found.where} has no Python source that tells what {name} takes"
        fix = "name a function of Python that calls it"
    else:
        return found
    raise invalid(key, path, problem=problem, fix=fix)


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
      group: the key of the options, such as `dataset`.
      path: the function's import path.
      arguments: its parameters.
      options: names of the options in the config.
      given: parameters that are passed in addition.
      write: how to add an option, with `group` and `name` in braces.

    Raises:
      ConfigError: names the option.
    """
    parameters = [*arguments.args, *arguments.kwonlyargs]
    own_options = [parameter.arg for parameter in parameters if parameter.arg not in given]
    for name in options:
        if name not in own_options and arguments.kwarg is None:
            takes = ", ".join(own_options) or "no options"
            problem = f"unknown option ({path} takes {takes})"
            raise ConfigError(f"{group}.{name}: {problem}; {did_you_mean(name, own_options)}")
    for name in required(arguments):
        if name not in options and name not in given:
            fix = write.format(group=group, name=name)
            raise ConfigError(f"{group}.{name}: {path} needs a value for it; {fix}")


def required(arguments: ast.arguments) -> list[str]:
    """Returns the names of the parameters without a default."""
    # `ast` lists the defaults of the last positional parameters only, whether positional-only or not.
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    without_default = positional[: len(positional) - len(arguments.defaults)]
    return without_default + _required_keywords(arguments)


def _required_keywords(arguments: ast.arguments) -> list[str]:
    """Returns the names of the keyword-only parameters without a default."""
    # Of keyword-only ones, it lists a default of each: None where there is none.
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [argument.arg for argument, default in pairs if default is None]


def load(path: str, key: str) -> Callable[..., Any]:
    """Imports a builder, or another function that the config names.

    Args:
      path: import path that has been checked.
      key: the config key with the path.

    Raises:
      ConfigError: the import fails, or leads to nothing callable.
    """
    module, _, name = path.rpartition(".")
    try:
        builder = getattr(importlib.import_module(module), name)
    except Exception as error:
        # A user's module may raise anything at import.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise invalid(key, path, problem=f"its module can't be imported ({reason})", fix="fix that module") from error
    if not callable(builder):
        raise invalid(key, path, problem=f"{name} is not callable", fix=_FIX)
    typed: Callable[..., Any] = builder
    return typed
