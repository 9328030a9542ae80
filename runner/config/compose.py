"""Composition of configs: all calls of Hydra that compose one are here.

A command composes by `application` and `compose_command`; `hydra_main` prints the config, help and completions as any
Hydra application does. Whatever else needs a config uses `compose`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext, RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from runner.config import texts
from runner.config.search_path import PRIMARY
from runner.errors import invalid
from runner.host import paths

# The release whose defaults Hydra keeps to: since 1.2 it does not change the current directory.
_VERSION_BASE = "1.3"


def hydra_main() -> None:
    """Runs the Hydra application that prints what `sys.argv` asks for: help, the config, completions.

    Raises:
      SystemExit: Hydra ends the process after some of these.
    """
    decorate = hydra.main(version_base=_VERSION_BASE, config_path=str(paths.conf_dir()), config_name=PRIMARY)
    decorate(lambda _: None)()


@contextmanager
def application() -> Iterator[Hydra]:
    """Yields the Hydra of a command, which is the process's until the block ends."""
    GlobalHydra.instance().clear()
    conf = paths.conf_dir()
    with hydra.initialize_config_dir(version_base=_VERSION_BASE, config_dir=str(conf), job_name="runner"):
        application = GlobalHydra.instance().hydra
        assert application is not None
        yield application


def compose_command(application: Hydra, name: str, overrides: Sequence[str], *, is_multirun: bool) -> DictConfig:
    """Composes the config of a command, of a run or of a sweep, with Hydra's own part.

    Args:
      is_multirun: it has `-m`; a preset may make it a sweep too.

    Raises:
      HydraException, OmegaConfBaseException, YAMLError: the config can't be composed; see `runner.cli.messages`.
    """
    overrides = list(overrides)
    mode = RunMode.RUN
    if is_multirun:
        # As Hydra's own command line does.
        overrides.append("hydra.mode=MULTIRUN")
        mode = RunMode.MULTIRUN
    elif any(override.is_sweep_override() for override in OverridesParser.create().parse_overrides(overrides)):
        # Several values without `-m` are an error, unless a preset makes the command a sweep.
        mode = application.get_mode(name, overrides) or RunMode.RUN
    composed = application.compose_config(name, overrides, mode)
    of_preset = composed.hydra.mode or RunMode.RUN
    if of_preset != mode:
        composed = application.compose_config(name, overrides, of_preset)
    composed.hydra.mode = of_preset
    return composed


def context(application: Hydra, composed: DictConfig) -> HydraContext:
    """Returns what Hydra's `run_job` takes beside the config, with the callbacks that a user has added."""
    return HydraContext(config_loader=application.config_loader, callbacks=Callbacks(composed))


@contextmanager
def each_composed(change: Callable[[DictConfig], None]) -> Iterator[None]:
    """Changes each config that the Hydra application composes in the block, before Hydra uses or prints it."""
    original = Hydra.compose_config

    def changed(
        application: Hydra,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        with_log_configuration: bool = False,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        config = original(
            application, config_name, overrides, run_mode, with_log_configuration, from_shell, validate_sweep_overrides
        )
        change(config)
        return config

    Hydra.compose_config = changed  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Hydra.compose_config = original  # type: ignore[method-assign]


def compose(overrides: Sequence[str]) -> DictConfig:
    """Composes a config from overrides without flags, apart from any running application.

    Folders of options are given as `hydra.searchpath=[...]`.

    Raises:
      ConfigError: it is a sweep, as a preset may make it.
      HydraException, OmegaConfBaseException, YAMLError: the config can't be composed; see `runner.cli.messages`.
    """
    with _separate_hydra():
        composed = hydra.compose(PRIMARY, overrides=list(map(texts.kept, overrides)), return_hydra_config=True)
    if composed.hydra.mode == RunMode.MULTIRUN:
        problem = "is a sweep, but this takes one run"
        raise invalid(
            "hydra.mode", "MULTIRUN", problem=problem, fix="add hydra.mode=RUN, or type the sweep in a shell"
        )
    return without_hydra(composed)


def compose_job(loader: ConfigLoader, multirun: DictConfig, overrides: Sequence[str], number: int) -> DictConfig:
    """Composes the config of one job of a multirun, with Hydra's own part; jobs are numbered from 0."""
    composed = loader.load_sweep_config(multirun, list(overrides))
    # As Hydra's own launcher does.
    with open_dict(composed):
        composed.hydra.job.id = number
        composed.hydra.job.num = number
    return composed


def without_hydra(composed: DictConfig) -> DictConfig:
    """Returns a copy without Hydra's own part."""
    config = copy.deepcopy(composed)
    # Hydra's own part is read-only, and the config a struct, whose keys can't be deleted.
    with read_write(config), open_dict(config):
        del config["hydra"]
    return config


def directory(composed: DictConfig, key: str, base: Path | None = None) -> Path:
    """Returns the absolute path of a folder that Hydra writes into, relative to `base` or the current directory."""
    value = OmegaConf.select(composed, key)
    if value is None or not str(value).strip():
        raise invalid(key, value, problem="must be the path of a folder", fix="remove it to use the default")
    return (base or Path.cwd()) / str(value)


@contextmanager
def _separate_hydra() -> Iterator[None]:
    """Replaces Hydra's global state for the block, and restores it: a notebook may be a Hydra program of its own."""
    surrounding_hydra = GlobalHydra.instance().hydra
    surrounding_version = VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(
            version_base=_VERSION_BASE, config_dir=str(paths.conf_dir()), job_name="runner"
        ):
            yield
    finally:
        GlobalHydra.instance().hydra = surrounding_hydra
        VersionBase.instance().version_base = surrounding_version
