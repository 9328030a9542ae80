"""Formats the errors of Hydra, OmegaConf, PyYAML and the disk as one line with a fix: the nearest key or option."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from runner.checkpoint.arguments import key_of
from runner.cli.command_line import is_group, short, unreadable
from runner.config import search_path
from runner.errors import ConfigError, did_you_mean, in_one_line, listed
from runner.host.outputs import caused_by_disk, unwritable

# What other tools of the field call a key, or an option -> ours. The nearest spelling is no help for these.
_ALIASES = {
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "seed": "trainer.seed",
    "max_epochs": "trainer.epochs",
    "max_steps": "trainer.steps",
    "bs": "dataset.batch_size",
    "accumulate_grad_batches": "trainer.accumulate_steps",
    "gradient_accumulation_steps": "trainer.accumulate_steps",
    "clip_norm": "optimizer.clip.global_norm",
    "devices": "mesh.axes.batch",
    "dtype": "engine.precision",
    "layout=ddp": "layout=replicated",
    "layout=zero": "layout=fsdp",
    "layout=zero3": "layout=fsdp",
    "layout=tp": "layout=megatron",
}


def one_line(error: Exception, arguments: Sequence[str]) -> str:
    """Returns the message of an error of ours, Hydra, OmegaConf or PyYAML in one line: key, value, problem and fix.

    Args:
      error: whose own message may have many lines.
      arguments: the overrides that were composed; flags of the command line may be among them.
    """
    if isinstance(error, ConfigError):
        return in_one_line(str(error))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _unknown_option(error.missing_cfg_file, error.options or (), arguments)
    if isinstance(error, OverrideParseException):
        return str(unreadable(error.override))
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        place = f"{error.problem_mark.name}, line {error.problem_mark.line + 1}"
        return f"{place}: invalid YAML ({error.problem}); check this line and the one before it"
    if not isinstance(error, HydraException):
        disk_error = caused_by_disk(error)
        if disk_error is not None:  # Hydra could not write its own files
            return str(unwritable(disk_error))
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = str(getattr(cause, "full_key", None) or "")
    if not key:
        return _of_hydra(in_one_line(str(error)), arguments)
    argument = _argument_of(key, arguments)
    parent = getattr(cause, "parent_node", None)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(parent, DictConfig):
        root = parent._get_root()
        assert isinstance(root, DictConfig)
        return _unknown_key(key, argument, root)
    if isinstance(parent, ListConfig):
        name = key.partition("[")[0]
        return f"{argument}: {name} is a list; set all of it: {name}=[...]"
    problem = in_one_line(str(getattr(cause, "msg", None) or cause).splitlines()[0])
    if isinstance(cause, InterpolationResolutionError):
        return f"{argument}: can't be resolved ({problem}); name a key that exists"
    return f"{argument}: {problem}; see python -m runner --cfg all"


def _of_hydra(text: str, arguments: Sequence[str]) -> str:
    """Returns an error of Hydra's, which has no key, with the argument that it is about, if its text names one."""
    several = re.match(r"Ambiguous value for argument '(.+?)=(.+?)' 1\.", text)
    if several:
        fix = f"add -m to run each, or write {several[1]}=[{several[2]}] for a list"
        return f"{several[1]}={several[2]}: has several values, and one run takes one; {fix}"
    for argument in arguments:
        key, _, value = argument.lstrip("+~").partition("=")
        # Of a group whose value is not a name, Hydra names neither.
        if is_group(key) and value not in search_path.options(key):
            return f"{short(argument)}: {text}; leave {key} out to get the default"
        name = key.rpartition(".")[2]
        if f"'{name}'" in text or re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text):
            return f"{short(argument)}: {text}"
    return text


def _argument_of(key: str, arguments: Sequence[str]) -> str:
    """Returns the argument that sets a key, something below it or what holds it; the key if there is none."""
    key = key.replace("[", ".").replace("]", "")
    typed = [argument for argument in arguments if f"{key}.".startswith(f"{key_of(argument)}.")]
    below = [argument for argument in arguments if key_of(argument).startswith(f"{key}.")]
    # The most specific one: `engine.loop=host`, not `engine=jax`.
    return short(max(typed or below or [key], key=lambda argument: len(key_of(argument))))


def _unknown_option(file: str, options: Sequence[str], arguments: Sequence[str]) -> str:
    """Returns the message of an option of a group that has no file, as `mesh/batch9`."""
    if "/" not in file:
        return f"--config-name {file}: no such config; remove it, or name the folder that has it with --config-dir"
    typed = [argument for argument in arguments if argument.lstrip("+~").replace("=", "/", 1) == file]
    group, _, option = (typed or ["=".join(file.rsplit("/", 1))])[0].lstrip("+~").partition("=")
    names = [name for name in options if name] or search_path.options(group)
    alias = _ALIASES.get(f"{group}={option.lower()}")
    close = [alias] if alias else [f"{group}={name}" for name in get_close_matches(option, names, n=1)]
    size = re.fullmatch(r"batch([1-9]\d*)", option)
    if group == "mesh" and size:
        fix = f"any size works: mesh.axes.batch={size[1]}, on a CPU with mesh.cpu_devices={size[1]}"
    elif close:
        fix = f"did you mean {close[0]}?"
    else:
        fix = f"choose one, as {group}={next(iter(names), 'default')}"
    return f"{short(f'{group}={option}')}: unknown option (options of {group}: {listed(sorted(names))}); {fix}"


def _unknown_key(key: str, argument: str, config: DictConfig) -> str:
    """Returns the message of a key that the config lacks, with the nearest one that it has."""
    known = [path for path in key_paths(config) if key.startswith("hydra.") or not path.startswith("hydra")]
    known = [path for path in known if not key.startswith(f"{path}.")]
    parent, _, name = key.rpartition(".")
    siblings = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == parent]
    options = search_path.options(parent) if parent else []
    with_key = [option for option in options if name in search_path.readable_content_of(f"{parent}/{option}")]
    if name in _ALIASES and _ALIASES[name] != key:
        fix = f"did you mean {_ALIASES[name]}?"
    elif with_key:
        fix = f"set {parent}={' or '.join(with_key)}, which {'has' if len(with_key) == 1 else 'have'} it"
    else:
        close = [f"{parent}.{sibling}" for sibling in get_close_matches(name, siblings, n=1) if parent]
        same_name = [path for path in known if path.rpartition(".")[2] == name]
        fix = did_you_mean(key, close or same_name or [path for path in known if "_target_" not in path])
    title = f"keys of {parent}" if parent else "groups"
    return f"{argument}: unknown key ({title}: {listed(sorted(siblings))}); {fix}"


def key_paths(config: DictConfig, prefix: str = "") -> list[str]:
    """Returns every dotted key of a config, groups and leaves."""
    paths = []
    for name in map(str, config):
        paths.append(f"{prefix}{name}")
        has_no_keys = OmegaConf.is_missing(config, name) or OmegaConf.is_interpolation(config, name)
        if not has_no_keys and isinstance(config[name], DictConfig):
            paths += key_paths(config[name], f"{prefix}{name}.")
    return paths
