"""Exceptions for users, exit codes, and the one format of error messages: `key=value: problem; fix`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Exit codes of every command.
EXIT_DONE = 0
EXIT_FAILED = 1  # the run or the check failed
EXIT_REFUSED = 2  # the config is invalid
EXIT_FINAL = 3  # of what restarts a run: it failed for a reason that every restart would meet, such as a NaN loss

# Characters of a library's error, or of a value, that a message shows. Longer ones fill the terminal.
_LONGEST = 300
# Characters of a message. The problem is at its beginning and the fix at its end, so the middle is left out.
_LONGEST_LINE = 2000
_MOST_LISTED = 10  # names in one message; the rest is in `--help`
# What has no blank and is longer, such as a list of layers, without the punctuation after it.
_LONG_VALUE = re.compile(rf"(\S{{{_LONGEST}}})\S+?([\])}}'\":;,?]*)(?=\s|$)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ConfigError(ValueError):
    """An invalid config. Commands print it as one line and exit with code 2."""


class PassingError(ConfigError):
    """A config that is invalid only for now: another process has the run, or a folder can't be written."""


class DataError(ConfigError):
    """A dataset with a mistake: it is not there, is corrupted, or does not fit the config or the rest of it."""


class CompiledError(ConfigError):
    """A model that was compiled, while the config has a task of its own."""


class TrackingError(RuntimeError):
    """A tracking server or store that can't be used."""


class EngineError(RuntimeError):
    """A failed run, or an engine whose start-up check found wrong results."""


class DownloadError(EngineError):
    """Data that can't be downloaded, which another start may get."""


class UnsavedError(EngineError):
    """A run whose state could not be saved; its results are recorded."""


class NotFiniteError(EngineError):
    """A NaN or Inf training loss at a step, from 1."""

    def __init__(self, step: int, loss: float) -> None:
        fix = " and trainer.on_nan=stop; lower optimizer.learning_rate or set optimizer.clip.global_norm=1.0"
        if step == 1:
            fix = (
                ", before the first update, so no learning rate helps: look for NaN in the data, for ids outside of "
                "an Embedding's input_dim, and for a division by 0 or a logarithm of 0 in a layer or in the loss; "
                "with engine=jax the environment variable JAX_DEBUG_NANS=true names the operation"
            )
        super().__init__(f"the loss is {loss} at step {step}{fix}")


# It is not an Exception: the user asked for it, and no `except Exception` may swallow it.
class Interrupted(BaseException):
    """End of a run by Ctrl-C, SIGTERM or a closed terminal; its metrics are stored and its status is KILLED.

    Attributes:
      signum: the signal.
      unsaved: why the state could not be saved; empty: it was saved, or there was none yet.
    """

    def __init__(self, signum: int, unsaved: str = "") -> None:
        super().__init__("; ".join(filter(None, (f"ended by signal {signum}", unsaved))))
        self.signum = signum
        self.unsaved = unsaved


def invalid(key: str, value: object, *, problem: str, fix: str) -> ConfigError:
    """Returns a `ConfigError` in the one format of error messages.

    The problem is a full clause, the fix an imperative; preferably an override to type.
    """
    return ConfigError(f"{key}={shown(value)}: {problem}; {fix}")


def passing(key: str, value: object, *, problem: str, fix: str) -> PassingError:
    """Returns a `PassingError` in the one format of error messages; see `invalid`."""
    return PassingError(str(invalid(key, value, problem=problem, fix=fix)))


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
        return f"[{','.join(map(shown, value))}]"
    text = str(value)
    if not text.strip():
        return f"'{text}'"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def listed(names: Iterable[object]) -> str:
    """Returns names separated by commas, at most ten of them."""
    every = list(map(shown, names))
    if len(every) > _MOST_LISTED:
        every[_MOST_LISTED:] = ["..."]
    return ", ".join(every)


def describe(error: BaseException) -> str:
    """Returns an exception of user code or a library as one line: its type and its message."""
    return in_one_line(f"{type(error).__name__}: {error}")[:_LONGEST].rstrip()


def in_one_line(text: str) -> str:
    """Returns a text as one line, without the color codes that libraries such as Keras write."""
    return " ".join(_COLOUR.sub("", text).split())


def cut(line: str) -> str:
    """Returns a message with its long values cut, however they were put into it.

    >>> cut(f"key={'x' * 400}: unknown") == f"key={'x' * 296}...: unknown"
    True
    """
    line = _LONG_VALUE.sub(r"\1...\2", line)
    if len(line) <= _LONGEST_LINE:
        return line
    half = _LONGEST_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """Returns the known name that is most alike; one with other digits is another thing, as cifar10 for cifar100."""
    from difflib import get_close_matches

    digits = re.findall(r"\d+", name)
    alike = [one for one in known if re.findall(r"\d+", one)[: len(digits)] == digits]
    return next(iter(get_close_matches(name, alike, n=1, cutoff=least)), None)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "see python -m runner --cfg job") -> str:
    """Returns the fix for a misspelled name: the nearest known one, else another fix."""
    # Not imported at the top: the signal handlers need this module before any slow import.
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]}?" if close else otherwise
