"""Settings of a sweep, checked before anything is opened for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from runner.checkpoint.arguments import key_of
from runner.cluster.membership import short_keys
from runner.config import texts, values
from runner.config.build import build
from runner.config.compose import directory
from runner.config.convert import as_typed, convert_group
from runner.config.schema import SweepConfig, TrackingConfig
from runner.config.schema_hydra import GridSweeper, ProcessLauncher, SearchSweeper
from runner.errors import ConfigError, invalid
from runner.host.session import command_module
from runner.plan.checks.trainer import settled_sweep
from runner.tracking import location

DIR = "hydra.sweep.dir"
_RECORDED_MODULES = ("runner", "runner.verify")  # commands whose jobs are runs in MLflow
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Settings:
    """What a sweep is; its `module` is the command."""

    module: str
    group: SweepConfig  # with metric and direction settled
    tracking: TrackingConfig
    launcher: ProcessLauncher
    sweeper: GridSweeper | SearchSweeper
    overrides: tuple[Override, ...]  # those of a preset, then those of the command line
    varied: dict[str, str]  # keys that vary, without Hydra's `+`, with the values as typed
    folder: Path

    @property
    def name(self) -> str:
        """The parent run's name."""
        keys = ", ".join(short_keys(list(self.varied)).values())
        return self.group.name or location.run_name() or f"sweep of {keys or 'one job'}"

    @property
    def is_recorded(self) -> bool:
        """Whether the jobs are runs in MLflow."""
        return self.module in _RECORDED_MODULES and location.MLFLOW in self.tracking.writers


def checked(config: DictConfig) -> Settings:
    """Reads the settings of a sweep from the config that Hydra composed for it, before any job's overrides.

    A ConfigError names an invalid key of launcher, sweeper, `sweep` or `tracking`.
    """
    launcher = _settings(ProcessLauncher, "hydra.launcher", config)
    kind: type[GridSweeper | SearchSweeper] = GridSweeper
    if "n_trials" in config.hydra.sweeper:
        kind = SearchSweeper
    sweeper = _settings(kind, "hydra.sweeper", config)
    overrides = tuple(OverridesParser.create().parse_overrides(arguments_of(config)))
    _check_swept(overrides, sweeper)
    group = convert_group("sweep", config)
    tracking = convert_group("tracking", config)
    location.check(tracking)
    group = settled_sweep(group, convert_group("task", config))
    varied = varied_values(overrides)
    folder = directory(config, DIR)
    settings = Settings(command_module(), group, tracking, launcher, sweeper, overrides, varied, folder)
    if group.resume and not settings.is_recorded:
        raise invalid("sweep.resume", group.resume, problem="needs a tracked sweep", fix="drop sweep.resume")
    return settings


def _settings(kind: type[Kind], key: str, config: DictConfig) -> Kind:
    content = OmegaConf.to_container(OmegaConf.select(config, key) or OmegaConf.create({}), resolve=True)
    # Hydra converts none of the values. A plugin of Hydra's has a key `_target_`, which is none of ours.
    settings = build(kind, cast("Mapping[str, object]", content), key, strict=True)
    values.check(settings, key)
    return settings


def _check_swept(overrides: tuple[Override, ...], sweeper: GridSweeper | SearchSweeper) -> None:
    is_search = isinstance(sweeper, SearchSweeper)
    if is_search and not varied_values(overrides):
        fix = "write 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))' or dataset.batch_size=64,128"
        raise ConfigError(f"hydra/sweeper=optuna: no key is swept; {fix}")
    for override in overrides:
        if override.is_interval_sweep() and not is_search:
            fix = "set hydra/sweeper=optuna, or list the values"
            raise ConfigError(f"{override.input_line}: a grid needs values, not an interval; {fix}")


def arguments_of(config: DictConfig) -> list[str]:
    """Returns the overrides of a sweep: the params of a preset, then the command line's, which win."""
    typed = as_typed(config.hydra.overrides.task)
    typed_keys = set(map(key_of, typed))
    preset: list[str] = []
    for key, value in (OmegaConf.select(config, "hydra.sweeper.params") or {}).items():
        if key not in typed_keys:
            preset.append(texts.kept(f"{key}={value}"))
    return [*preset, *typed]


def varied_values(overrides: tuple[Override, ...]) -> dict[str, str]:
    """Returns the keys that a sweep varies, with the values as they were typed."""
    varied = {}
    for override in overrides:
        if override.is_sweep_override():
            varied[key_of(str(override.input_line))] = str(override.input_line).partition("=")[2]
    return varied
