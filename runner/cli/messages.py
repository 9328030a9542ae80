"""Formats the errors of Hydra, OmegaConf, PyYAML and the disk as one line with a fix.

An error of Hydra is rarely read: the overrides that it was composed from are checked again, by `runner.cli.overrides`,
which finds the invalid one and knows what fits. Only attributes of exceptions are used here, and no wording.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from runner.cli import overrides
from runner.cli.command_line import unreadable
from runner.errors import ConfigError, in_one_line
from runner.host.outputs import caused_by_disk, unwritable


def one_line(error: Exception, arguments: Sequence[str]) -> str:
    """Returns the message of an error in one line: key and value, the problem, the fix.

    Args:
      error: a `ConfigError`, or an exception of Hydra, OmegaConf or PyYAML, whose messages have many lines.
      arguments: the overrides that were composed; flags of the command line may be among them.
    """
    if isinstance(error, ConfigError):
        return in_one_line(str(error))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return overrides.unknown_option(error.missing_cfg_file, error.options or (), arguments)
    if isinstance(error, OverrideParseException):
        return str(unreadable(error.override))
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        place = f"{error.problem_mark.name}, line {error.problem_mark.line + 1}"
        return f"{place}: invalid YAML ({error.problem}); check this line and the one before it"
    if not isinstance(error, HydraException):
        disk_error = caused_by_disk(error)
        if disk_error is not None:  # Hydra could not write its own files
            return str(unwritable(disk_error))
    fault = overrides.first_fault(arguments)
    if fault is not None:
        return fault
    if isinstance(error, InterpolationResolutionError) and error.full_key:
        argument = overrides.argument_of(str(error.full_key), arguments)
        return f"{argument}: can't be resolved ({_first_line(error)}); name a key or a variable that exists"
    return in_one_line(str(error))


def _first_line(error: OmegaConfBaseException) -> str:
    text = str(error.msg or error)
    return in_one_line(text.splitlines()[0])
