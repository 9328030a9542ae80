"""What the loop knows of an engine. Imports neither TensorFlow nor JAX."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from runner.data.base import Array, DataSource
from runner.layout import Placement
from runner.task.base import Evaluation

T = TypeVar("T")


def as_called(inputs: dict[str, T]) -> T | dict[str, T]:
    """Returns what a model is called with, of its inputs by name: the only one, or all."""
    return inputs if len(inputs) > 1 else next(iter(inputs.values()))


@dataclass(frozen=True)
class HostBatches:
    """Up to K batches of one device call, on the host.

    Attributes:
      arrays: by name, each (K, B, ...): those of the dataset, or `row` alone where the engine keeps the split on its
        devices; and `weight`, float32 (K, B). Padding has the arrays of some example.
      weights: float32 (K, B), `Task.weights` of them: what each example counts for in a mean over its batch.
      steps: how many of the K are real; the rest is padding that is not computed.
    """

    arrays: Mapping[str, Array]
    weights: Array
    steps: int


@dataclass(frozen=True)
class PlacedBatches:
    """The same on the devices, with what the host needs to read the results."""

    arrays: Mapping[str, Any]
    weights: Array
    steps: int


@dataclass(frozen=True)
class StepMetrics:
    """Sums over each step's global batch, read back.

    Attributes:
      sums: float64 (steps,) by name: `loss`, regularization losses times the weight added, and the task's.
      weight: float64 (steps,), what each sum is of: sums / weight are the steps' means.
    """

    sums: Mapping[str, Array]
    weight: Array


class Pending(Protocol):
    """Metrics of a device call that may still be on the devices."""

    def read(self) -> StepMetrics:
        """Waits for the call and returns its metrics."""
        ...


@dataclass(frozen=True)
class Shard:
    """A piece of a variable as one device holds it.

    Attributes:
      start: where it begins in each dim of the whole.
      array: the piece: a host array, or one on a device, which NumPy brings to the host when it is asked for.
      whole: shape of the whole variable.
    """

    start: tuple[int, ...]
    array: Array
    whole: tuple[int, ...]


def part_of(state: Mapping[str, Array], path: str, index: tuple[slice, ...]) -> Array:
    """Returns a part of a whole array; of a state that is read in parts, as a checkpoint, no more is read.

    Args:
      state: path -> whole array; one that is read in parts has `part(path, index)`.
      path: of the array.
      index: a slice a dim.
    """
    read = getattr(state, "part", None)
    found: Array = read(path, index) if read else state[path][index]
    return found


def shape_of(state: Mapping[str, Array], path: str) -> tuple[int, ...]:
    """Returns the shape of a whole array; of a state that is read in parts, without reading any."""
    read = getattr(state, "shape", None)
    return tuple(read(path) if read else state[path].shape)


@dataclass(frozen=True)
class VariableInfo:
    """One variable as it lies on the devices.

    Attributes:
      shape: the whole variable's.
      dtype: as `float32`.
      spec: one entry a dim, an axis name or None.
      bytes_per_device: what each device holds of it.
    """

    shape: tuple[int, ...]
    dtype: str
    spec: tuple[str | None, ...]
    bytes_per_device: int


INPUTS = "(inputs)"  # stands for the layer that gives the model its inputs; `(inputs)/<name>` where there are several


@dataclass(frozen=True)
class LayerInput:
    """What one layer takes.

    Attributes:
      layer: canonical path of the layer that gives it; `INPUTS`; empty where the engine does not tell.
      shape: of the whole input for one global batch.
    """

    layer: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LayerOutput:
    """What one layer gives, for the plan's activations and operations.

    Attributes:
      layer: canonical path of the layer, the part of its variables' paths before the last `/`.
      kind: the layer's class, as `Dense`.
      shape: of the whole output for one global batch.
      dtype: as `float32`.
      inputs: of which the layer makes it.
    """

    layer: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    inputs: tuple[LayerInput, ...] = ()


@dataclass(frozen=True)
class Collective:
    """Communication of one training step.

    Attributes:
      kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast` or `permute` (each device to one).
      axis: mesh axis, or several joined by `+`, over whose devices it runs.
      phase: `forward`, `backward` or `update`.
      origin: canonical path of the variable, or of the layer, that it serves; empty where the program does not tell.
      count: how many a device takes part in.
      bytes: of all of them, what one device puts in (all_reduce, reduce_scatter, all_to_all,
        permute) or gets out (all_gather).
    """

    kind: str
    axis: str
    phase: str
    origin: str
    count: int
    bytes: int


@dataclass(frozen=True)
class ProgramCost:
    """What a step's program takes of one device, as its compiler counts it.

    Attributes:
      argument_bytes: of the state, and of the batches of a call.
      output_bytes: of the new state, and of the metrics.
      reused_bytes: of the outputs that take the place of arguments.
      temporary_bytes: of what it holds in between.
      flops: floating-point operations of one step.
      accessed_bytes: that one step reads and writes.
    """

    argument_bytes: int
    output_bytes: int
    reused_bytes: int
    temporary_bytes: int
    flops: float
    accessed_bytes: float


@dataclass(frozen=True)
class PlainModel:
    """A run's model on one device, without a mesh.

    Attributes:
      model: called with what `Task.inputs` gives and `training`: a tf_keras model, a tf.Module or a Keras 3 model.
      keras: the same network as a Keras model, for a file of Keras's own; None where there is none.
      package: `tf_keras` or `keras`, what `keras` is made of.
      why: in words, why `keras` is None.
    """

    model: Any
    keras: Any
    package: str
    why: str = ""


class Engine(Protocol):
    """Owns devices and state; computes steps.

    Attributes:
      placements: of every variable, by canonical path; made by `build`.
    """

    placements: Mapping[str, Placement]

    def build(self) -> None:
        """Makes the devices, the model and the optimizer's slots, and checks the mesh's arithmetic."""
        ...

    def place(self, batches: HostBatches) -> PlacedBatches:
        """Puts batches on the devices, split as the layout says. May run on another thread than the steps."""
        ...

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> Pending:
        """Runs `batches.steps` training steps in one device call.

        Args:
          batches: placed batches.
          first_step: steps done before, for bias corrections and schedules.
          rate_factor: what the schedule's learning rate is multiplied by.
        """
        ...

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Traces what runs in the context into a folder, for TensorBoard and Perfetto."""
        ...

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns whole gradients of the first batch's loss by canonical path, before clipping; changes no state.

        Args:
          batches: at least one batch.
          step: steps done before, which dropout masks depend on.
        """
        ...

    def compile(self, batches: PlacedBatches) -> None:
        """Makes the step's program for batches of these shapes, without running a step."""
        ...

    @property
    def trainable(self) -> Sequence[str]:
        """Returns the canonical paths of the variables that are trained."""
        ...

    def collectives(self) -> list[Collective]:
        """Returns what the compiled step communicates, counted in its program."""
        ...

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns every layer's output for one batch, or for one of the parts that it is computed in."""
        ...

    def used_whole(self) -> Collection[str]:
        """Returns the paths of variables that operations need whole on each device, however they are stored."""
        ...

    def evaluate(self, batches: Iterable[HostBatches], *, keep_outputs: bool = False) -> Evaluation:
        """Evaluates over every example of weight 1, with the averages of the weights where the run keeps them."""
        ...

    def with_and_without_padding(self, batch: HostBatches) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns what the task gives for a batch that ends in padding, if its functions see that and if they don't.

        Args:
          batch: K = 1, of a task that has `reads_batch`.

        Returns:
          Twice each example's `loss`, and the task's totals by name.
        """
        ...

    def variables(self) -> Mapping[str, VariableInfo]:
        """Returns canonical path to variable; slots are `optimizer/<slot>/<path>`, averages `ema/<path>`."""
        ...

    def state(self) -> dict[str, Array]:
        """Returns whole host arrays by canonical path: variables and slots. All processes must ask for them."""
        ...

    def shards(self) -> dict[str, list[Shard]]:
        """Returns variables and slots by canonical path, each in its different pieces; good until the next step.

        Of several processes each has its own; together they are every piece once.
        """
        ...

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Sets variables and slots from whole arrays, see `part_of`; every path of `state()` must be there."""
        ...

    def plain_model(self) -> Any:
        """Returns a single-device model of the same framework with the present weights, or their averages."""
        ...


@runtime_checkable
class CountsCost(Protocol):
    """An engine whose compiler tells what the step's program takes."""

    def program_cost(self) -> ProgramCost | None:
        """Returns the compiled program's cost; None where the compiler does not count it."""
        ...


@runtime_checkable
class SavesLight(Protocol):
    """An engine whose Keras would import another framework to save a model."""

    def saving(self) -> AbstractContextManager[None]:
        """Returns a context in which saving a model imports no framework that is not imported already."""
        ...


@runtime_checkable
class Writes(Protocol):
    """An engine whose models can write text."""

    def next_logits(self, batch: HostBatches) -> Array:
        """Returns float32 (B, V), `Task.next_logits` of one batch, with the weights that an evaluation takes."""
        ...


@runtime_checkable
class CachesSplit(Protocol):
    """An engine that can keep a split's arrays on its devices.

    Attributes:
      caches: whether it keeps one; batches then say by `row` where in it their examples are.
    """

    caches: bool

    def cache_on_device(self, source: DataSource) -> None:
        """Keeps a split, where the config and its size allow it and it lies in memory; before a step is compiled."""
        ...


@runtime_checkable
class ShowsPieces(Protocol):
    """An engine that tells how a batch lies on its devices, for the picture of it."""

    def input_pieces(self) -> Mapping[str, Mapping[int, tuple[tuple[int, int], ...]]]:
        """Returns, for each input, device number -> (start, stop) in each dim of what the device holds of a batch."""
        ...


def cache_on_device(engine: Engine, source: DataSource) -> None:
    """Lets an engine keep a split on its devices, if it can; comes before its step is compiled."""
    if isinstance(engine, CachesSplit):
        engine.cache_on_device(source)


def caches_split(engine: Engine) -> bool:
    """Returns whether an engine keeps its split, so that batches need only say where in it they are."""
    return isinstance(engine, CachesSplit) and engine.caches
