"""Import paths of user code: checked by reading the source before anything is imported, and imported when used."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from runner.errors import ConfigError, did_you_mean, invalid
from runner.host import definition

_MEND = "name it as package.module.name; its module lies on the Python path or in the current directory"


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
    wanted = len(parameters)
    required = len(taken) - len(arguments.defaults)
    named = [a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    if required > wanted or (len(taken) < wanted and arguments.vararg is None) or named:
        raise invalid(
            key,
            path,
            problem=f"a function that takes {', '.join(parameters)}; this one takes "
            f"{', '.join([*(one.arg for one in taken), *named]) or 'nothing'}",
            fix=f"write def {path.rpartition('.')[2]}({', '.join(parameters)})",
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
        raise invalid(key, path or "''", problem="an import path with a dot", fix=_MEND)
    try:
        found = definition.find(path)
    except definition.UnreadableError as error:
        raise invalid(key, path, problem=str(error), fix="fix it") from error
    fix = _MEND
    if found.kind == "no module":
        allowed = f"there is no module {found.where}"
    elif found.kind == "missing":
        allowed = f"module {module} has no {name!r}, it defines {', '.join(found.names) or 'no function'}"
        fix = did_you_mean(name, found.names, _MEND)
    elif found.kind == "value":
        allowed = f"{name} in {found.where} is not callable"
    elif found.kind == "compiled" and not compiled:
        allowed = f"{found.where} has no Python source that tells what {name} takes"
        fix = "name a function of Python that calls it"
    else:
        return found
    raise invalid(key, path, problem=allowed, fix=fix)


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
            raise ConfigError(f"{group}.{name}: {path} takes {takes}; {did_you_mean(name, named)}")
    for name in required(arguments):
        if name not in options and name not in given:
            fix = write.format(group=group, name=name)
            raise ConfigError(f"{group}.{name}: it has no value and {path} needs it; {fix}")


def required(arguments: ast.arguments) -> list[str]:
    """Returns the names of the parameters without a default."""
    positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return positional[: len(positional) - len(arguments.defaults)] + [a.arg for a, value in named if value is None]


def load(path: str, key: str) -> Callable[..., Any]:
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
        raise invalid(key, path, problem=f"it does not import ({reason})", fix="fix that module") from error
    if not callable(builder):
        raise invalid(key, path, problem=f"{name} is not callable", fix=_MEND)
    typed: Callable[..., Any] = builder
    return typed
