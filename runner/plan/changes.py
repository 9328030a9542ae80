"""The smallest single change of a config that makes a step fit into the memory of hardware that is not here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig, RunConfig
from runner.engine import make_engine
from runner.errors import ConfigError, EngineError
from runner.host import stages
from runner.layout import mesh
from runner.model import gpt_options
from runner.plan.base import ARITHMETIC, Change, Forecast, MemoryPart
from runner.plan.checks import run
from runner.plan.make import memory_parts
from runner.task.base import DataSpec

_ACCUMULATE_STEPS = (2, 4, 8)
_FSDP = "fsdp"


def smallest(
    config: RunConfig, data: DataSpec, forecast: Forecast, parts: Sequence[MemoryPart], overrides: Sequence[str]
) -> tuple[Change, ...]:
    """Returns the first single change with which the step fits, by arithmetic; empty if none of them is enough.

    Tried are, in this order, a mesh on which FSDP shards more, activation checkpointing, more microbatches, half of
    the batch, and FSDP.
    """
    # Where the target's compiler needs more memory than arithmetic says, a change has to leave room for the rest.
    excess = max(forecast.peak_bytes - _bytes(parts), 0)
    room = forecast.capacity_bytes - excess
    # Only another layout makes the state smaller.
    state_fits = sum(part.bytes for part in parts if part.source == "counted") <= room
    config = replace(config, plan=replace(config.plan, compiler=ARITHMETIC))
    with stages.stage("looking for a change that fits"):
        changes = candidates(config, overrides, keeps_layout=state_fits)
        if forecast.split_axes:
            # The same work on the same devices, so it comes before all that costs time.
            split = replace(config, mesh=replace(config.mesh, axes=dict(forecast.split_axes)))
            changes = itertools.chain([(mesh.override(forecast.split_axes), split)], changes)
        for override, changed in changes:
            peak = _peak(changed, data)
            if peak is not None and peak <= room:
                return (Change(override, peak + excess),)
    return ()


def candidates(config: RunConfig, overrides: Sequence[str], *, keeps_layout: bool) -> Iterator[tuple[str, RunConfig]]:
    """Yields changes as overrides, with the changed configs, which are not checked.

    With `keeps_layout`, also those that leave the layout as it is.
    """
    if keeps_layout:
        options = config.model.options
        if config.model.target == gpt_options.TARGET and options.get("remat") != "full":
            yield (
                "model.remat=full",
                replace(config, model=replace(config.model, options={**options, "remat": "full"})),
            )
        for steps in _ACCUMULATE_STEPS:
            if steps > config.trainer.accumulate_steps:
                trainer = replace(config.trainer, accumulate_steps=steps)
                yield f"trainer.accumulate_steps={steps}", replace(config, trainer=trainer)
        if config.dataset.batch_size % 2 == 0:
            half = config.dataset.batch_size // 2
            yield f"dataset.batch_size={half}", replace(config, dataset=replace(config.dataset, batch_size=half))
    # Keys of the layout that the command line sets would be set in the other layout too.
    sets_keys = any(override.lstrip("+~").startswith("layout.") for override in overrides)
    layout = build(LayoutConfig, search_path.content_of(f"layout/{_FSDP}"), "layout")
    assert isinstance(layout, LayoutConfig)
    if not sets_keys and layout != config.layout:
        yield f"layout={_FSDP}", replace(config, layout=layout)


def _peak(config: RunConfig, data: DataSpec) -> int | None:
    """Returns one device's bytes at the peak of a step, by arithmetic; None if the config is invalid."""
    try:
        config = run.check(config)
        engine = make_engine(config, data, 1, planning=True)
        engine.build()
    except (ConfigError, EngineError):
        # Such as a batch that the mesh does not divide.
        return None
    return _bytes(memory_parts(config, engine, data))


def _bytes(parts: Sequence[MemoryPart]) -> int:
    return sum(part.bytes for part in parts)
