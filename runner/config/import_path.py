"""Import paths of user code: their form is checked before an import, and what they lead to after it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, did_you_mean, in_one_line, invalid

_FIX = "write it as package.module.name; the module must be on the Python path or in the current directory"
_PYTHON = sysconfig.get_paths()["stdlib"]
_PACKAGE = Path(__file__).parents[1]
_SHOWN_FRAMES = 3  # the last ones; what called them rarely matters, and the log has all
_SHOWN_CHARACTERS = 600  # of an error; the log has all
_CODE_CHARACTERS = 80  # of a line of code
# First packages of the paths that the config names: the user's own code also where it is installed. Process-wide, as
# the modules are.
_named: set[str] = set()


def check(key: str, path: str) -> None:
    """Rejects, by a ConfigError with the key, what is no import path, or has a first package that is not there."""
    module = path.rpartition(".")[0]
    if not module or not all(map(str.isidentifier, path.split("."))):
        raise invalid(key, path or "''", problem="must be an import path with a dot", fix=_FIX)
    package = module.partition(".")[0]
    if _spec(package) is None and package not in sys.modules:
        raise invalid(key, path, problem=f"there is no module {package}", fix=_FIX)


def _spec(package: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(package)
    except ValueError:  # no name, or a loaded module without a spec, such as `__main__`
        return None


def source_of(path: str) -> Path | None:
    """Returns the source file of the module of an import path, which is not imported; None if there is none."""
    package, *rest = path.rpartition(".")[0].split(".")
    spec = _spec(package)
    if spec is None:
        return None
    candidates = [Path(spec.origin or "")]
    if rest:
        candidates = []
        for location in spec.submodule_search_locations or ():
            folder = Path(location, *rest)
            candidates += [folder / "__init__.py", folder.with_suffix(".py")]
    return next((file for file in candidates if file.suffix == ".py" and file.is_file()), None)


def load(path: str, key: str) -> Callable[..., Any]:
    """Imports a builder, or another function that the config names, by its checked import path.

    Raises:
      ConfigError: the import fails, and the message has the line of the user's file; or it leads to nothing callable.
    """
    module, _, name = path.rpartition(".")
    # Frames of Keras would hide those of the user that led there.
    _named.update({path.partition(".")[0]} - {"keras", "tf_keras"})
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(path, key, error) from error
        raise invalid(key, path, problem=f"there is no module {error.name}", fix=_FIX) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything at import
        raise _broken(path, key, error) from error
    try:
        function = getattr(loaded, name)
    except AttributeError as error:
        known = [own for own, value in vars(loaded).items() if callable(value) and not own.startswith("_")]
        fix = did_you_mean(name, known, _FIX)
        raise invalid(key, path, problem=f"module {module} has no {name!r}", fix=fix) from error
    if not callable(function):
        raise invalid(key, path, problem=f"{name} is not callable", fix=_FIX)
    typed: Callable[..., Any] = function
    return typed


def _broken(path: str, key: str, error: BaseException) -> ConfigError:
    problem = f"the import raised {raised(error)}"
    if isinstance(error, SyntaxError):
        problem = f"{Path(error.filename or '').name}:{error.lineno}: {in_one_line(f'SyntaxError: {error.msg}')}"
    if isinstance(error, TrainingAtImportError):
        problem = f"the module trains a model when it is imported{where(error)}"
        return invalid(key, path, problem=problem, fix='move what trains below if __name__ == "__main__":')
    return invalid(key, path, problem=problem, fix="correct that line")


class TrainingAtImportError(Exception):
    """A user's module that trains a Keras model while it is imported, as a script does."""


def raised(error: BaseException) -> str:
    """Returns an exception as one line, with the last lines of the user's own code that led to it, if any did.

    Such as `ValueError: bad unit (nets.py:14 in build, nets.py:9 in hidden: return keras.layers.Dense("ten"))`.
    """
    # Keras ends its messages with a list of all arguments.
    text = re.split("(?:Call a|A)rguments received by", in_one_line(f"{type(error).__name__}: {error}"))[0]
    return text.rstrip()[:_SHOWN_CHARACTERS] + where(error)


def where(error: BaseException) -> str:
    """Returns those lines alone, in parentheses after a space; nothing if none is the user's."""
    cause: BaseException | None = error
    while cause is not None:
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_users(Path(frame.filename))]
        if frames:
            # As an editor finds it from the current directory.
            places = [f"{os.path.relpath(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames]
            code = in_one_line(frames[-1].line or "")[:_CODE_CHARACTERS]
            return f" ({', '.join(places[-_SHOWN_FRAMES:])}: {code})".replace(" in <module>", "")
        cause = cause.__cause__ or cause.__context__
    return ""


def _is_users(file: Path) -> bool:
    # Code without a file, such as `<frozen importlib>`, is Python's.
    if file.name.startswith("<") or file.is_relative_to(_PACKAGE):
        return False
    return not is_installed(file) or not _named.isdisjoint((*file.parts, file.stem))


def is_installed(file: Path) -> bool:
    """Returns whether a file is of Python's library or of an installed package, in whatever environment."""
    return file.is_relative_to(_PYTHON) or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


def parameters(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Returns a function's parameters by name; none if its signature can't be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def check_positional(key: str, path: str, function: Callable[..., object], names: Collection[str]) -> None:
    """Checks, by a ConfigError, a user's function that is called with these positional arguments."""
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        wanted = ", ".join(names)
        taken = ", ".join(parameters(function)) or "nothing"
        problem = f"must be a function that takes {wanted}; this one takes {taken}"
        raise invalid(key, path, problem=problem, fix=f"write def {path.rpartition('.')[2]}({wanted})") from error
    except ValueError:
        return


def check_options(
    group: str,
    path: str,
    function: Callable[..., object],
    options: Collection[str],
    given: Collection[str] = (),
    write: str = "add +{group}.{name}=...",
    *,
    takes_any: bool = True,
) -> None:
    """Checks that the function of a path takes the options that the config has for it, and gets all that it needs.

    One whose signature can't be read passes. A ConfigError names the option.

    Args:
      group: the key of the options, such as `dataset`.
      options: names of the options in the config.
      given: parameters that are passed in addition.
      write: how to add an option, with `group` and `name` in braces.
      takes_any: its `**kwargs` are options, too.
    """
    try:
        named = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    takes_any = takes_any and any(parameter.kind is parameter.VAR_KEYWORD for parameter in named)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = {one.name: one for one in named if one.kind in by_name and one.name not in given}
    for name in options:
        if name not in own and not takes_any:
            problem = f"unknown option ({path} takes {', '.join(own) or 'no options'})"
            raise ConfigError(f"{group}.{name}: {problem}; {did_you_mean(name, own)}")
    for name, parameter in own.items():
        if parameter.default is parameter.empty and name not in options:
            fix = write.format(group=group, name=name)
            raise ConfigError(f"{group}.{name}: {path} needs a value for it; {fix}")
