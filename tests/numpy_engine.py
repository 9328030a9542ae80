"""An engine of one weight and no model, for tests of the loop: what it computes is known without one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NoReturn, cast

import numpy as np

from runner.config.schema import DatasetConfig, RunConfig
from runner.data import workers
from runner.data.base import WEIGHT, Array, ArraySource, ArraySpec, Dataset
from runner.engine.base import HostBatches, PlacedBatches, Shard, StepMetrics, VariableInfo
from runner.engine.common import Engine
from runner.layout.paths import is_variable
from runner.task.base import Evaluation, OutputSpec, Task
from runner.train import feed

SPECS = {"label": ArraySpec((), "int32")}


class KnownTask(Task):
    """A task of metrics that a test's engine makes up itself."""

    def __init__(self, arrays: Mapping[str, ArraySpec] = SPECS, metrics: Sequence[str] = ("accuracy",)) -> None:
        self.arrays, self.input_names, self.outputs = dict(arrays), tuple(arrays)[:1], OutputSpec(None)
        self.directions = {"loss": "minimize"} | dict.fromkeys(metrics, "maximize")
        self.step_metrics, self.constants = tuple(metrics), {}

    def _unused(self, *_: object) -> NoReturn:
        raise AssertionError("the engine is asked, and not the task")

    loss = metrics = totals = summary = check = report = metric_directions = _unused  # type: ignore[assignment]


def splits(
    run: RunConfig,
    train: Mapping[str, Array],
    test: Mapping[str, Array],
    validation: Mapping[str, Array] | None = None,
) -> feed.Splits:
    """Returns the splits of a run, of arrays by name."""
    specs = {name: ArraySpec(array.shape[1:], str(array.dtype)) for name, array in train.items()}
    sources = [None if arrays is None else ArraySource(arrays, specs) for arrays in (train, test, validation)]
    assert sources[0] is not None
    assert sources[1] is not None
    data = Dataset("toy", "1", sources[0], sources[1], sources[2], "0", "here")
    engine = cast(Engine, SimpleNamespace(batch_axis=None, caches=False))
    return feed.splits(run.dataset, run.trainer, data, KnownTask(specs), workers.Workers(DatasetConfig()), engine)


def means(loss: Array, accuracy: Array, weight: float = 1.0) -> StepMetrics:
    """Returns the metrics of steps whose means are given."""
    return StepMetrics({"loss": loss * weight, "accuracy": accuracy * weight}, np.full(len(loss), weight))


@dataclass
class Read:
    """Metrics that are there already."""

    metrics: StepMetrics

    def read(self) -> StepMetrics:
        return self.metrics


class HostEngine:
    """What engines of tests have alike, whose arrays are the host's."""

    counts_cost = caches = False
    batch_axis = None
    axes: Mapping[str, int] = MappingProxyType({})

    def state(self) -> dict[str, Array]:
        raise NotImplementedError

    def place(self, batches: HostBatches) -> PlacedBatches:
        return PlacedBatches(batches.arrays, batches.weights, batches.steps)

    def mixes_rows(self, batch: HostBatches) -> bool:
        del batch
        return False

    def variables(self) -> dict[str, VariableInfo]:
        return {
            path: VariableInfo(value.shape, str(value.dtype), (None,) * value.ndim, value.nbytes)
            for path, value in self.state().items()
        }

    @property
    def trainable(self) -> list[str]:
        return [path for path in self.state() if is_variable(path)]

    def shards(self) -> dict[str, list[Shard]]:
        return {path: [Shard((0,) * value.ndim, value.copy(), value.shape)] for path, value in self.state().items()}


@dataclass
class NumpyEngine(HostEngine):
    """A step adds the mean label, times the rate's factor, to `w`; its loss is `w` from before.

    Attributes:
      explodes: step that makes `w` infinite.
      accuracies: of the evaluations, one after another; else the share of examples below `w`.
      calls: (first step, steps, factor) of each call.
      evaluated: (labels, whether outputs were asked for) of each evaluation.
      traced: the folder of each trace, and the steps that ran in it.
    """

    explodes: int | None = None
    accuracies: list[float] = field(default_factory=list)
    w: float = 0.0
    calls: list[tuple[int, int, float]] = field(default_factory=list)
    seen: list[tuple[int, ...]] = field(default_factory=list)
    evaluated: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)
    traced: list[tuple[Path, list[int]]] = field(default_factory=list)
    _tracing: bool = False

    def cache_on_device(self, source: object) -> None:
        pass

    def saving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> Read:
        self.calls.append((first_step, batches.steps, rate_factor))
        losses = []
        for index in range(batches.steps):
            losses.append(self.w)
            labels = batches.arrays["label"][index][batches.arrays[WEIGHT][index] > 0]
            self.seen.append(tuple(int(label) for label in labels))
            self.w += rate_factor * float(labels.mean())
            if self.explodes == first_step + index + 1:
                self.w = float("inf")
            if self._tracing:
                self.traced[-1][1].append(first_step + index)
        loss = np.asarray(losses)
        return Read(means(loss, np.full_like(loss, 0.5), 4.0))

    def evaluate(self, batches: Iterable[HostBatches], *, keep_outputs: bool = False) -> Evaluation:
        labels = np.concatenate([batch.arrays["label"][batch.arrays[WEIGHT] > 0] for batch in batches])
        self.evaluated.append((tuple(labels.tolist()), keep_outputs))
        accuracy = self.accuracies.pop(0) if self.accuracies else float((labels < self.w).mean())
        outputs = labels[: len(labels) if keep_outputs else 0].astype(np.float32)
        return Evaluation({"loss": self.w, "accuracy": accuracy}, len(labels), {"count": np.array(1.0)}, outputs)

    @contextmanager
    def trace(self, folder: Path) -> Iterator[None]:
        self.traced.append((folder, []))
        self._tracing = True
        yield
        self._tracing = False

    def state(self) -> dict[str, Array]:
        return {"d1/w": np.array(self.w)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.w = float(state["d1/w"])
