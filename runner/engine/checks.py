"""Checks of `engine` and `against`; see `runner.checks.run`."""

from __future__ import annotations

import re

from runner.config.checks_values import changed, one_of, positive
from runner.config.schema import EngineConfig, RunConfig
from runner.engine.registry import ENGINES, check_installed
from runner.errors import invalid
from runner.layout import mesh
from runner.model import target
from runner.processes import place

_MOST_THREADS = 1024


def check(config: RunConfig) -> None:
    """Checks the two groups.

    Raises:
      ConfigError: the first thing found that cannot work.
    """
    one_of("engine.name", config.engine.name, tuple(ENGINES))
    for key in ("loop", "data"):
        one_of(f"engine.{key}", getattr(config.engine, key), ("auto", "device", "host"))
    check_installed(config.engine.name)
    if config.layout.from_model and not ENGINES[config.engine.name].has_model_layouts:
        raise invalid(
            "layout.from_model",
            "true",
            problem=f"engine.name={config.engine.name} has no models with a map of their own",
            fix="set engine=jax, or layout=megatron",
        )
    _check_against(config)
    _check_precision(config)
    _check_keys(config.engine)
    _check_state(config.engine)


def _check_keys(config: EngineConfig) -> None:
    """Refuses keys of the other engines; at their defaults they stand in no option's file, but in the schema."""
    key = "engine.intra_op_threads"
    threads = config.intra_op_threads
    positive(key, threads)
    if threads is not None and threads > _MOST_THREADS:
        raise invalid(key, threads, problem=f"at most {_MOST_THREADS}", fix=f"leave {key} out")
    own = ENGINES[config.name].keys
    for entry_name, entry in ENGINES.items():
        for other in changed(config, [key for key in entry.keys if key not in own]):
            raise invalid(
                f"engine.{other}",
                getattr(config, other),
                problem=f"engine.name={config.name} has no such key",
                fix=f"leave {other} out, or set engine={entry_name}",
            )


def check_builder(config: RunConfig) -> None:
    """Refuses a builder of Keras models for the engine that trains none; `model` is checked."""
    for key, engine in (("engine.name", config.engine.name), ("against.engine", config.against.engine)):
        if engine and ENGINES[engine].takes_layouts and not target.takes(config.model, target.LAYOUTS):
            raise invalid(
                key,
                engine,
                problem=f"it trains what takes `{target.LAYOUTS}`, and model._target_={config.model.target} does not",
                fix="set model=mlp_core, or another engine for a builder of Keras models",
            )


def check_trainable(config: RunConfig) -> None:
    """Checks `model.trainable`, whose patterns the engine `jax` knows what to do with."""
    key = "model.trainable"
    patterns = config.model.trainable
    if patterns is None:
        return
    for name, engine in (("engine.name", config.engine.name), ("against.engine", config.against.engine)):
        if engine is not None and not ENGINES[engine].freezes_variables:
            raise invalid(key, patterns, problem=f"{name}={engine} trains all", fix="set engine=jax, or leave it out")
    if not patterns:
        raise invalid(key, patterns, problem="at least one pattern, or null for all", fix=f"set {key}=['.*/kernel']")
    for index, pattern in enumerate(patterns):
        try:
            re.compile(pattern)
        except re.error as error:
            raise invalid(
                f"{key}[{index}]", pattern, problem=f"a regular expression ({error})", fix="escape what is literal"
            ) from error


def _check_precision(config: RunConfig) -> None:
    key = "engine.precision"
    precision = config.engine.precision
    one_of(key, precision, tuple({one: None for entry in ENGINES.values() for one in entry.precisions}))
    for name, fix in (
        (config.engine.name, f"set engine=jax or {key}=float32"),
        (config.against.engine, f"set {key}=float32 to compare engines"),
    ):
        if name and precision not in ENGINES[name].precisions:
            allowed = f"float32 with engine {name}, whose models take DTensor layouts or mixed precision, not both"
            raise invalid(key, precision, problem=allowed, fix=fix)


def _check_state(config: EngineConfig) -> None:
    key = "engine.state"
    state = config.state
    one_of(key, state, ("float32", "master", "bfloat16"))
    if state != "float32" and config.precision != "bfloat16":
        raise invalid(
            key,
            state,
            problem=f"float32 with engine.precision={config.precision}, whose layers use float32 weights",
            fix=f"set engine.precision=bfloat16 too, or leave {key} out",
        )


def check_processes(config: RunConfig) -> None:
    """Checks `against.processes`; the mesh's devices are settled.

    Raises:
      ConfigError: one process can't hold the mesh, or holds it anyway.
    """
    key = "against.processes"
    other = config.against.processes
    if other is None:
        return
    if other != 1:
        raise invalid(key, other, problem="1, or null", fix=f"set {key}=1")
    if mesh.device_kind(config.mesh) != "cpu":
        raise invalid(
            key, other, problem="virtual devices of the CPU, which one process can hold", fix="set mesh.device=cpu"
        )
    if place.count(config.cluster) == 1:
        raise invalid(key, other, problem="a run in several processes", fix="set cluster=local too, or leave it out")


def _check_against(config: RunConfig) -> None:
    key = "against.engine"
    other = config.against.engine
    if other is None:
        return
    one_of(key, other, tuple(ENGINES))
    if other == config.engine.name:
        raise invalid(
            key,
            other,
            problem=f"another engine than engine.name={other}",
            fix=f"set {key}={next(name for name in ENGINES if name != other)}, or leave it out for one device",
        )
    check_installed(other, key)
