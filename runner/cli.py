"""What every command shares: Hydra composes, the config is checked, and a refusal is one line and exit code 2."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from runner import paths
from runner.checkpoint import arguments
from runner.config import convert
from runner.errors import ConfigError, DataError, EngineError, Interrupted, TrackingError
from runner.outputs import caused_by_disk, unwritable
from runner.schema import RunConfig
from runner.sweep import launch, member, resume, state
from runner.tracking import secrets

logger = logging.getLogger(__name__)

_LONGEST = 600  # characters of a library's error that are shown
EXIT_DONE, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2
Command = Callable[[RunConfig, DictConfig], None]


def run_command(command: Command) -> int:
    """Composes the config from the command line, checks it and runs a command on it.

    Args:
      command: called with the checked config and the composed DictConfig.

    Returns:
      The process's exit code: 0 done, 1 failed, 2 the config was refused, 128 + n ended by signal n.
    """
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach us instead of Hydra's own printer
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109
        sys.path.append(os.getcwd())  # noqa: PTH109 - a user's own builders, also under the console script
    sys.argv[1:] = secrets.hide_arguments(free_axes(sys.argv[1:]))
    try:
        return EXIT_DONE if _run(command) else EXIT_FAILED
    except Interrupted as interrupted:
        return 128 + interrupted.signum
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:  # the reader of a pipe left, as `| head` does
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for the interpreter's own last flush
        return EXIT_FAILED
    except (DataError, EngineError, TrackingError) as error:
        return _report(" ".join(str(error).split()), EXIT_FAILED, wants_traceback)
    except Exception as error:  # ours or Hydra's own: what a command raises besides has been wrapped
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):  # Ray's C++ code puts it into another
            return _interrupted()
        return _report(one_line(error), EXIT_REFUSED, wants_traceback)


def _run(command: Command) -> bool:
    """Runs the command, or a sweep of it to its end, however that comes.

    Returns:
      Whether a sweep's jobs all passed; True where there was none.
    """
    failures: list[Exception] = []
    ended: BaseException | None = None
    passed = True
    member.join()
    sys.argv[1:] = arguments.expand(resume.expand(sys.argv[1:]))
    try:
        _hydra_main(command, failures)()
        for failure in failures:
            raise failure
    except BaseException as error:
        ended = error
        raise
    finally:
        if (sweep := state.started()) is not None:
            from runner.sweep.report import finish

            passed = finish(sweep, ended)
    return passed


def free_axes(arguments: list[str]) -> list[str]:
    """Lets a command line name a mesh's axes freely; Hydra takes a key that is not there for a slip.

    Args:
      arguments: as typed.

    Returns:
      `mesh.axes={...}` as what replaces the axes, `mesh.axes.model=2` as what sets or adds one.
    """
    found: list[str] = []
    for argument in arguments:
        if argument.startswith("mesh.axes={"):
            found += ["~mesh.axes", f"+{argument}"]
        else:
            found.append(f"++{argument}" if argument.startswith("mesh.axes.") else argument)
    return found


def _hydra_main(command: Command, failures: list[Exception]) -> Callable[[], None]:
    OmegaConf.register_new_resolver("runner_outputs", lambda: str(paths.outputs_dir()), replace=True)
    OmegaConf.register_new_resolver("runner_pid", lambda: str(os.getpid()), replace=True)

    def task(composed: DictConfig) -> None:
        """Keeps an error for `run_command`; Hydra would print it in its own way."""
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            launch.run_foreign_job()
            return
        folder = Path(HydraConfig.get().runtime.output_dir)
        try:
            command(convert(composed), composed)
        except ConfigError as error:
            failures.append(error)
            if not (folder / "config.yaml").exists():  # nothing ran
                _close_logs(folder)
                shutil.rmtree(folder, ignore_errors=True)
        except (Interrupted, DataError, EngineError, TrackingError) as error:
            failures.append(error)
        except Exception as error:
            logger.exception("the run failed")
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"
            wrapped = EngineError(f"{text}; the traceback is in {folder / 'runner.log'}")
            wrapped.__cause__ = error
            failures.append(wrapped)

    decorated: Callable[[], None] = hydra.main(
        version_base="1.3", config_path=str(paths.conf_dir()), config_name="config"
    )(task)
    return decorated


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130


def _close_logs(folder: Path) -> None:
    """Lets go of a run's log files, which some systems can't delete while they are open."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, logging.FileHandler) and Path(handler.baseFilename).parent == folder:
            root.removeHandler(handler)
            handler.close()


def _report(line: str, code: int, wants_traceback: bool) -> int:
    if wants_traceback:
        print(secrets.scrub(traceback.format_exc()), end="", file=sys.stderr)
    print(f"error: {secrets.scrub(line)}", file=sys.stderr)
    return code


def one_line(error: Exception) -> str:
    """Puts a refusal into one line: key, value, what is allowed, the mend.

    Args:
      error: our own refusal, or one of Hydra's and OmegaConf's, whose messages span lines.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        group, _, option = error.missing_cfg_file.rpartition("/")
        options = [name for name in error.options if name]
        return f"{group}={option} is refused: options are {', '.join(options)}; {_suggest(group, option, options)}"
    disk = None if isinstance(error, ConfigError | HydraException) else caused_by_disk(error)
    if disk is not None:  # Hydra's own files, before the command
        return str(unwritable(disk))
    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        return _not_an_override(error.override)
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        return _unknown_key(unknown.group(1).partition("@")[0])
    twice = re.search(r"Multiple values for (\S+?)\. ", text)
    if twice:
        group = twice.group(1)
        given = next((argument for argument in sys.argv[1:] if argument.startswith(f"+{group}=")), f"+{group}")
        return f"{given} is refused: {group} has an option already; write {given.lstrip('+')}"
    if "Config group override must be" in text or "Error merging override" in text:
        return _wrong_kind(text)
    return text


def _not_an_override(override: str) -> str:
    """Words what Hydra's grammar can't read; a value with brackets inside, as a split has, needs quotes of its own."""
    key, equals, value = override.partition("=")
    if equals and re.fullmatch(r"[\w.+~]+", key) and re.fullmatch(r"\w+\[[^']*\][^']*", value):
        mend = f"quote the value for Hydra and the shell: \"{key}='{value}'\""
    else:
        mend = "write key=value, lists as [a,b]"
    return f"{override!r} is refused: not an override that can be read; {mend}"


def _wrong_kind(text: str) -> str:
    """Words a value of a kind that the key can't hold: a number or null for a group, a list for a mapping."""
    merging = re.search(r"Error merging override (\S+)", text)
    arguments = [argument for argument in sys.argv[1:] if re.fullmatch(r"\w+=\S*", argument)]
    groups = [argument for argument in arguments if (paths.conf_dir() / argument.split("=")[0]).is_dir()]
    options = {group: _options(group.split("=")[0]) for group in groups}
    given = merging.group(1) if merging else next((g for g in groups if g.split("=")[1] not in options[g]), "")
    key = given.split("=")[0]
    if merging:
        return f"{given} is refused: {key} holds keys, not a value of this kind; write {key}.name=value"
    return f"{given} is refused: options are {', '.join(options.get(given, []))}; name one of them, or leave {key} out"


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (paths.conf_dir() / group).glob("*.yaml"))


def _suggest(group: str, option: str, options: list[str]) -> str:
    close = get_close_matches(option, options, n=1)
    if close:
        return f"did you mean {group}={close[0]}?"
    return (
        f"choose one, as {group}={options[0]}"
        if options
        else "install the package again, its conf folder is incomplete"
    )


def _unknown_key(key: str) -> str:
    """Words the refusal of a key that the composed config lacks, with the nearest one that it has."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    groups = [argument for argument in sys.argv[1:] if re.fullmatch(r"\w+=\w+", argument)]
    groups = [argument for argument in groups if (paths.conf_dir() / argument.split("=")[0]).is_dir()]
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        known = key_paths(compose("config", overrides=groups))
    close = get_close_matches(key, known, n=1, cutoff=0.6)
    parent = key.rpartition(".")[0]
    siblings = [k for k in known if k.rpartition(".")[0] == parent]
    given = next((argument for argument in sys.argv[1:] if re.match(rf"\+*{re.escape(key)}\b", argument)), key)
    allowed = f"keys of {parent} are" if parent and siblings else "groups are"
    names = ", ".join(sorted(k.rpartition(".")[2] for k in (siblings or [k for k in known if "." not in k])))
    mend = f"did you mean {close[0]}?" if close else "see python -m runner --cfg job"
    return f"{given} is refused: no such key; {allowed} {names}; {mend}"


def key_paths(config: DictConfig) -> list[str]:
    """Returns every dotted key of a config, groups and leaves."""
    found: list[str] = []

    def walk(node: DictConfig, prefix: str) -> None:
        for key in map(str, node):
            found.append(f"{prefix}{key}")
            if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
                walk(node[key], f"{prefix}{key}.")

    walk(config, "")
    return found
