"""Composition of configs: all calls of Hydra that compose one are here.

A command composes by `hydra_main`, so that everything that users know of a Hydra application works: multirun, `--cfg`,
`--info`, `--help`, shell completion, launchers, sweepers and callbacks. Whatever else needs a config uses `compose`,
and within a run `compose_again`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, open_dict

from runner.config import texts
from runner.config.convert import as_typed
from runner.config.search_path import KEY, PRIMARY
from runner.host import paths

# The release whose defaults Hydra keeps to: since 1.2 it does not change the current directory.
_VERSION_BASE = "1.3"


def hydra_main(task: Callable[[DictConfig], None]) -> Callable[[], None]:
    """Returns the Hydra application around a task; it reads `sys.argv`."""
    decorate = hydra.main(version_base=_VERSION_BASE, config_path=str(paths.conf_dir()), config_name=PRIMARY)
    application: Callable[[], None] = decorate(task)
    return application


@contextmanager
def each_composed(change: Callable[[DictConfig], None]) -> Iterator[None]:
    """Changes each config that the Hydra application composes in the block, before Hydra uses or prints it."""
    original = Hydra.compose_config

    def changed(*arguments: Any, **options: Any) -> DictConfig:
        config = original(*arguments, **options)
        change(config)
        return config

    Hydra.compose_config = changed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.compose_config = original  # type: ignore[method-assign]


def compose(overrides: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    """Composes a config from overrides without flags, apart from any running application, perhaps with the `hydra`
    node.

    Folders of options are given as `hydra.searchpath=[...]`.

    Raises:
      HydraException, OmegaConfBaseException, YAMLError: the config can't be composed; see `runner.cli.messages`.
    """
    with _separate_hydra():
        return hydra.compose(PRIMARY, overrides=list(map(texts.kept, overrides)), return_hydra_config=with_hydra)


def compose_again(options: Sequence[str]) -> DictConfig:
    """Composes the defaults and some options, as `mesh=batch8`, with the folders of the run in progress."""
    return hydra.compose(HydraConfig.get().job.config_name, [*_search_path_overrides(), *options])


def default_choices() -> Mapping[str, str | None]:
    """Returns the options of the defaults by group, as in the run in progress.

    Only the defaults lists are read: to compose the config takes twice as long.
    """
    loader = GlobalHydra.instance().config_loader()
    name = HydraConfig.get().job.config_name
    defaults_list = loader.compute_defaults_list(name, _search_path_overrides(), RunMode.RUN)
    choices: Mapping[str, str | None] = defaults_list.overrides.known_choices
    return choices


def compose_job(loader: ConfigLoader, multirun: DictConfig, overrides: Sequence[str], number: int) -> DictConfig:
    """Composes the config of one job of a multirun, with Hydra's own part; jobs are numbered from 0."""
    composed = loader.load_sweep_config(multirun, list(overrides))
    # As Hydra's own launcher does.
    with open_dict(composed):
        composed.hydra.job.id = number
        composed.hydra.job.num = number
    return composed


def _search_path_overrides() -> list[str]:
    typed = as_typed(HydraConfig.get().overrides.hydra)
    return [override for override in typed if override.startswith(f"{KEY}=")]


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
