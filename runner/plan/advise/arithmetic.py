# ruff: noqa: D102 - a traced model answers as the Engine that documents it
"""Plans of candidates by arithmetic: the model is traced a few times, and its shapes are placed on every mesh.

A plan needs a built engine only for what it knows of the model. Its shapes and its layers' outputs do not depend on
mesh and layout. The arrays that its forward pass keeps depend on whether the loss is in chunks, and on the form of
attention. Meshes that agree in these share a trace, see `runner.plan.advise.split`.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from runner import layout
from runner.config import search_path
from runner.config.build import build
from runner.config.schema import LayoutConfig, RunConfig
from runner.engine import make_engine
from runner.engine.base import LayerOutput, TracedSizes, VariableInfo
from runner.engine.common import Engine
from runner.engine.mappings import shapes_of
from runner.errors import ConfigError, EngineError
from runner.layout import Placement, hybrid
from runner.layout.paths import owner_of
from runner.plan import base, memory
from runner.plan.advise import candidates, ranking, split
from runner.plan.advise.candidates import Candidate
from runner.plan.checks import run
from runner.plan.make import make_plan
from runner.task.base import DataSpec

logger = logging.getLogger(__name__)

# Axes, whether the vocabulary is sharded, and whether tokens are.
Parts = tuple[tuple[tuple[str, int], ...], bool, bool]
# One device: every batch and every model is valid on it.
_WHOLE: Parts = (((candidates.BATCH, 1),), False, False)

# Axes, whether tokens are sharded, and the spec of every variable.
Program = tuple[tuple[tuple[str, int], ...], bool, tuple[tuple[str | None, ...], ...]]

# Whole outputs of the layers, the same on every mesh, by activation checkpointing and number of microbatches.
Outputs = dict[tuple[str | None, int], Sequence[LayerOutput]]

# Reasons for which a candidate is not planned.
INVALID = "invalid"
LINT = "lint"
NEEDLESS = "saves more memory than needed"
STATE = "weights and optimizer state alone do not fit"
ACTIVATIONS = "do not fit, as the one that saves the most memory on the same mesh and layout"


@dataclass(frozen=True)
class TracedModel:
    """What a plan by arithmetic asks an engine, on any mesh.

    Attributes:
      whole: variables and slots by path, with whole shapes.
      saved: shape and dtype of each array that the forward pass keeps in device memory.
      scores: of attention that is not fused, by block.
    """

    placements: Mapping[str, Placement]
    trainable: Sequence[str]
    whole: Mapping[str, VariableInfo]
    outputs: Sequence[LayerOutput]
    saved: list[tuple[tuple[int, ...], str]]
    scores: list[list[tuple[tuple[int, ...], str]]]
    axes: Mapping[str, int]
    sizes: TracedSizes = field(default_factory=TracedSizes)

    def variables(self) -> dict[str, VariableInfo]:
        """Returns variables and slots as the mesh shards them: a slot of its variable's shape is sharded as that."""
        placed = {}
        for path, info in self.whole.items():
            # State of the whole optimizer belongs to no variable.
            owner = self.placements.get(path) or self.placements.get(owner_of(path))
            spec: tuple[str | None, ...] = (None,) * len(info.shape)
            shard = info.shape
            if owner is not None and owner.shape == info.shape:
                spec = owner.spec
                shard = owner.shard_shape(self.axes)
            size = math.prod(shard) * memory.width_of(info.dtype)
            placed[path] = VariableInfo(info.shape, info.dtype, spec, size)
        return placed

    def layer_outputs(self) -> list[LayerOutput]:
        return list(self.outputs)

    def used_whole(self) -> set[str]:
        return set()

    def saved_activations(self) -> list[tuple[tuple[int, ...], str]]:
        return self.saved

    def attention_scores(self) -> list[list[tuple[tuple[int, ...], str]]]:
        return self.scores


class Arithmetic:
    """Plans candidates of one config; traces are kept."""

    def __init__(self, config: RunConfig, data: DataSpec, choices: Mapping[str, str]) -> None:
        # Engines are asked for shapes only, whatever compiler plans the best candidates.
        self._config = replace(config, plan=replace(config.plan, compiler=base.ARITHMETIC))
        self._data = data
        self._choices = choices
        self._trace = functools.cache(self._traced)
        # Traces, moved to one part and one chunk, by all else that a trace depends on.
        self._shared: dict[Hashable, TracedModel] = {}
        self._outputs: Outputs = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns shape by canonical path of the model's variables."""
        return shapes_of(self._whole().placements)

    def _whole(self) -> TracedModel:
        """Returns the model on one device, with the options of the command line."""
        config = self._config
        remat = config.model.options.get("remat")
        return self._trace(remat, config.trainer.accumulate_steps, config.engine.state, _WHOLE)

    def changed(self, candidate: Candidate) -> RunConfig:
        """Returns the candidate's config, checked; a ConfigError if it is invalid."""
        placed = self._config.layout
        if candidate.layout != self._choices["layout"]:
            placed = _layout_option(candidate.layout)
        if candidate.sequence:
            placed = replace(placed, sequence=candidates.SEQUENCE)
        config = self._with(candidate.sizes, placed, candidate.remat, candidate.accumulate, candidate.state)
        changed = run.check(config)
        layout.check_inputs(changed.layout, self._data.arrays, changed.dataset.batch_size, changed.mesh.axes)
        return changed

    def placed(self, candidate: Candidate) -> dict[str, Placement]:
        """Returns the placements of a candidate's variables; raises as `changed` does."""
        changed = self.changed(candidate)
        return layout.resolve(changed.layout, self.shapes(), changed.mesh.axes)

    def split(self, candidate: Candidate, placements: Mapping[str, Placement]) -> hybrid.Split | None:
        """Returns the mesh on which a candidate's FSDP shards the most, see `hybrid.split`."""
        changed = self.changed(candidate)
        return hybrid.split(changed.layout, placements, changed.mesh.axes)

    def lint(self, candidate: Candidate, placements: Mapping[str, Placement]) -> str | None:
        """Returns why a mesh and layout are certainly a mistake, or None."""
        sizes = candidate.sizes
        used = set()
        for placement in placements.values():
            used |= set(placement.spec)
        for axis in (candidates.MODEL, candidates.EXPERTS):
            if sizes.get(axis, 1) > 1 and axis not in used:
                return f"layout={candidate.layout} shards nothing over {axis}={sizes[axis]}"
        node = self._config.hardware.node_devices
        if node and sizes.get(candidates.MODEL, 1) > node:
            return f"{candidates.MODEL}={sizes[candidates.MODEL]} sums activations between nodes of {node} devices"
        changed = self.changed(candidate)
        warnings = layout.lint(changed.layout, placements, changed.mesh.axes)
        if warnings and candidates.MODEL in sizes:
            return warnings[0]
        return None

    def planned(self, candidate: Candidate, placements: Mapping[str, Placement]) -> ranking.Planned:
        """Returns the plan of a candidate whose placements are known; raises as `changed` does."""
        changed = self.changed(candidate)
        remat = changed.model.options.get("remat")
        parts = (candidate.axes, candidate.layout in candidates.TENSOR, candidate.sequence)
        traced = self._trace(remat, candidate.accumulate, candidate.state, parts)
        engine: Any = replace(traced, placements=placements, axes=changed.mesh.axes)
        plan = make_plan(changed, cast("Engine", engine), self._data, self._choices)
        assert plan.forecast is not None
        return ranking.of_forecast(candidate, plan.forecast)

    def _traced(self, remat: str | None, accumulate: int, state: str, parts: Parts) -> TracedModel:
        """Returns the model with these options: moved from another mesh if it can be, else traced."""
        config = self._engine_config(remat, accumulate, state, parts)
        # The length of the run, here one step, changes no shape. The engine is that of a plan for absent hardware.
        engine: Any = make_engine(config, self._data, 1, planning=True)
        if parts == _WHOLE:
            return _built(engine, config.mesh.axes, self._outputs, (remat, accumulate))
        whole = self._whole()
        engine.is_checked = True
        losses = whole.sizes.losses
        program, own_split = engine.traced_as(shapes_of(whole.placements), whole.sizes)
        key = (remat, accumulate, state, program)
        examples = config.dataset.batch_size // accumulate
        if key in self._shared:
            saved = split.moved(self._shared[key].saved, losses, examples, own_split.joined, own_split)
            if saved is not None:
                return replace(self._shared[key], saved=saved)
        traced = _built(engine, config.mesh.axes, self._outputs, (remat, accumulate))
        saved = split.moved(traced.saved, losses, examples, own_split, own_split.joined)
        if saved is not None:
            self._shared[key] = replace(traced, saved=saved)
        return traced

    def _engine_config(self, remat: str | None, accumulate: int, state: str, parts: Parts) -> RunConfig:
        axes, shards_vocabulary, shards_tokens = parts
        placed = LayoutConfig()
        if shards_vocabulary:
            placed = _layout_option(candidates.MEGATRON)
        if shards_tokens:
            placed = replace(placed, sequence=candidates.SEQUENCE)
        return self._with(dict(axes), placed, remat, accumulate, state)

    def _with(
        self, axes: dict[str, int], placed: LayoutConfig, remat: str | None, accumulate: int, state: str
    ) -> RunConfig:
        config = self._config
        model = config.model
        if remat is not None:
            model = replace(model, options={**model.options, "remat": remat})
        return replace(
            config,
            mesh=replace(config.mesh, axes=axes),
            layout=placed,
            model=model,
            trainer=replace(config.trainer, accumulate_steps=accumulate),
            engine=replace(config.engine, state=state),
        )


def _built(engine: Any, axes: Mapping[str, int], outputs: Outputs, key: tuple[str | None, int]) -> TracedModel:
    """Builds a planned engine and returns what it knows of the model; the layers' outputs are traced once per key."""
    engine.build()
    saved = engine.saved_activations()
    if key not in outputs:
        outputs[key] = list(engine.layer_outputs())
    return TracedModel(
        placements=engine.placements,
        trainable=list(engine.trainable),
        whole=dict(engine.variables()),
        outputs=outputs[key],
        saved=saved,
        scores=engine.attention_scores(),
        axes=axes,
        sizes=engine.traced_sizes(),
    )


@functools.cache
def _layout_option(name: str) -> LayoutConfig:
    content = build(LayoutConfig, search_path.content_of(f"layout/{name}"), "layout")
    assert isinstance(content, LayoutConfig)
    return content


def explored(
    arithmetic: Arithmetic, devices: int, options: candidates.Allowed, reached: Callable[[str], None]
) -> tuple[list[ranking.Planned], list[ranking.Dropped]]:
    """Returns the candidates that were planned, and the others with the reasons.

    On each mesh and layout, what saves memory is tried from what costs the least, and only as far as it is needed: a
    combination that saves as much as one that fits, or more, is left out. `reached` gets how far this is.
    """
    planned: list[ranking.Planned] = []
    dropped: list[ranking.Dropped] = []
    programs: set[Program] = set()
    starts = candidates.placements(devices, options)
    for done, start in enumerate(starts):
        reached(f"{done} of {len(starts)} meshes with layouts")
        try:
            placements = arithmetic.placed(start)
        except ConfigError as error:
            dropped.append(ranking.Dropped(start, INVALID, str(error)))
            continue
        hsdp = arithmetic.split(start, placements)
        if hsdp is not None and hsdp.axes:
            detail = f"layout={start.layout}: {hsdp.reason}"
            dropped.append(ranking.Dropped(start, LINT, detail))
            start = replace(start, axes=tuple(hsdp.axes.items()))
            placements = arithmetic.placed(start)
        warning = arithmetic.lint(start, placements)
        if warning is not None:
            dropped.append(ranking.Dropped(start, LINT, warning))
            continue
        # Two layouts that place every variable alike are one program.
        program = (start.axes, start.sequence, tuple(placement.spec for placement in placements.values()))
        if program in programs:
            dropped.append(ranking.Dropped(start, LINT, f"layout={start.layout} places all as another layout does"))
            continue
        programs.add(program)
        try:
            own_planned, own_dropped = _explored_on(arithmetic, start, placements, options)
        except EngineError as error:
            dropped.append(ranking.Dropped(start, INVALID, str(error)))
            continue
        planned += own_planned
        dropped += own_dropped
    return planned, dropped


def _explored_on(
    arithmetic: Arithmetic, start: Candidate, placements: Mapping[str, Placement], options: candidates.Allowed
) -> tuple[list[ranking.Planned], list[ranking.Dropped]]:
    """Returns what `explored` does, for the candidates of one mesh and layout."""
    most_saving = _most_saving(arithmetic, start, placements, options)
    planned = [most_saving]
    dropped: list[ranking.Dropped] = []
    fitting: list[tuple[str, str | None, int]] = []
    # Sums of gradients are counted as state, so a state may be too large only where microbatches need them.
    too_large_states = _too_large_states(most_saving)
    # Hundreds of plans are saved on meshes that fit in no way.
    is_hopeless = most_saving.verdict == base.TOO_LARGE and most_saving.state_fits
    for saver in candidates.savers(options):
        state, remat, steps = saver
        candidate = replace(start, remat=remat, accumulate=steps, state=state)
        words = " ".join(candidate.overrides())
        if candidate == most_saving.candidate:
            continue
        if is_hopeless:
            dropped.append(ranking.Dropped(candidate, ACTIVATIONS, words))
            continue
        if any(candidates.is_beyond(options, saver, other) for other in fitting):
            dropped.append(ranking.Dropped(candidate, NEEDLESS, "less is enough on this mesh and layout"))
            continue
        if (state, steps > 1) in too_large_states:
            dropped.append(ranking.Dropped(candidate, STATE, words))
            continue
        try:
            entry = arithmetic.planned(candidate, placements)
        except (ConfigError, EngineError) as error:
            logger.info("%s: %s", words, error)
            dropped.append(ranking.Dropped(candidate, INVALID, str(error)))
            continue
        planned.append(entry)
        too_large_states |= _too_large_states(entry)
        if entry.verdict == base.FITS:
            fitting.append(saver)
    return planned, dropped


def _too_large_states(entry: ranking.Planned) -> set[tuple[str, bool]]:
    """Returns which states don't fit either, with and without sums of gradients, if a candidate's does not."""
    candidate = entry.candidate
    if entry.state_fits:
        return set()
    return {(candidate.state, True), (candidate.state, candidate.accumulate > 1)}


def _most_saving(
    arithmetic: Arithmetic, start: Candidate, placements: Mapping[str, Placement], options: candidates.Allowed
) -> ranking.Planned:
    """Returns the valid candidate of a mesh and layout that saves the most memory; an EngineError if none is."""
    reason = ""
    for state, remat, steps in reversed(candidates.savers(options)):
        try:
            return arithmetic.planned(replace(start, remat=remat, accumulate=steps, state=state), placements)
        except (ConfigError, EngineError) as error:
            reason = str(error)
    raise EngineError(reason)
