"""Errors that a user can cause or meet; each message is one line: what is wrong, what is allowed, the fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Exit codes of every command.
EXIT_DONE = 0
EXIT_FAILED = 1  # the run or the check failed
EXIT_REFUSED = 2  # the config is invalid

_LONGEST = 300  # characters of another's error that a message shows
_MOST_LISTED = 10  # names in one message; the rest is in `--help`
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ConfigError(ValueError):
    """A config that cannot work. Commands print it as one line and exit with code 2."""


class DataError(RuntimeError):
    """A dataset that can neither be found nor fetched, or whose bytes are not what they must be."""


class TrackingError(RuntimeError):
    """A tracking server or store that cannot be used."""


class EngineError(RuntimeError):
    """An engine that failed, or whose start-up check found wrong arithmetic."""


class UnsavedError(EngineError):
    """A run whose state could not be saved; its results are recorded."""


class NotFiniteError(EngineError):
    """A training loss that is not finite.

    Attributes:
      step: the step that gave it, from 1.
      loss: the loss.
    """

    def __init__(self, step: int, loss: float, policy: str) -> None:
        super().__init__(
            f"the loss is {loss} at step {step} and trainer.on_nan={policy}; lower optimizer.learning_rate or set "
            "optimizer.clip.global_norm=1.0"
        )
        self.step = step
        self.loss = loss


class Interrupted(BaseException):  # no error: the user asked, and no `except Exception` may keep it
    """Ctrl-C, SIGTERM or a closed terminal ended the run; its metrics are stored and its status is KILLED.

    Attributes:
      signum: the signal.
      unsaved: why its state could not be saved, in words; empty: it was, or there was none yet.
    """

    def __init__(self, signum: int, unsaved: str = "") -> None:
        super().__init__(f"ended by signal {signum}" + (f"; {unsaved}" if unsaved else ""))
        self.signum = signum
        self.unsaved = unsaved


class Refused(BaseException):
    """Carries an error out of a Hydra callback.

    It is no `Exception` because Hydra turns an exception that a callback raises into a warning.

    Attributes:
      error: the error.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def invalid(key: str, value: object, *, problem: str, fix: str) -> ConfigError:
    """Builds a `ConfigError` in the one form that every refusal has.

    Args:
      key: dotted config key, as on the command line.
      value: the value that was given.
      problem: what is wrong with the value, as a full clause.
      fix: one thing to do, preferably an override to type.

    Returns:
      The error, to be raised by the caller.
    """
    return ConfigError(f"{key}={shown(value)}: {problem}; {fix}")


def shown(value: object) -> str:
    """Returns a value as it is typed on the command line: `null`, `true`, `[8,8]`, `{batch:8}`.

    >>> shown({"axes": [None, True, "model"]})
    '{axes:[null,true,model]}'
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        entries = (f"{key}:{shown(entry)}" for key, entry in value.items())
        return f"{{{','.join(entries)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(shown(entry) for entry in value)}]"
    text = str(value)
    if not text.strip():
        return f"'{text}'"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def listed(names: Iterable[object]) -> str:
    """Returns names separated by commas, at most ten of them."""
    every = [shown(name) for name in names]
    return ", ".join([*every[:_MOST_LISTED], *(["..."] if len(every) > _MOST_LISTED else [])])


def describe(error: BaseException) -> str:
    """Returns an exception of a user's code or a library as one line: its type and its text."""
    return in_one_line(f"{type(error).__name__}: {error}")[:_LONGEST].rstrip()


def in_one_line(text: str) -> str:
    """Returns a text as one line, without the colors that libraries such as Keras write for terminals."""
    return " ".join(_COLOUR.sub("", text).split())


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "see python -m runner --cfg job") -> str:
    """Returns the fix for a misspelt word: the nearest known one; another fix where none is near."""
    from difflib import get_close_matches  # not above: signals needs this module before anything that takes time

    close = get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else otherwise
