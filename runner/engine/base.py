"""What an engine exchanges with the training loop, checkpoints and plans. Imports neither TensorFlow nor JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from runner.data.base import Array

T = TypeVar("T")


@dataclass(frozen=True)
class HostBatches:
    """Up to K batches of one device call, on the host.

    Attributes:
      arrays: by name, each (K, B, ...): those of the dataset, or `row` alone if the engine keeps the split on its
        devices; and `weight`, float32 (K, B). Padding repeats the arrays of some example.
      weights: float32 (K, B), `Task.weights` of the batches: the weight of each example in a mean over its batch.
      steps: number of real batches; the others of the K are padding, which is not computed.
    """

    arrays: Mapping[str, Array]
    weights: Array
    steps: int


@dataclass(frozen=True)
class PlacedBatches:
    """Host batches whose arrays are on the devices; results are read with the weights and steps, which are not."""

    arrays: Mapping[str, Any]
    weights: Array
    steps: int


@dataclass(frozen=True)
class StepMetrics:
    """Sums over each step's global batch, on the host.

    Attributes:
      sums: float64 (steps,) by name: `loss`, which includes regularization losses times the weight, and the task's.
      weight: float64 (steps,), total weight of each batch: sums / weight are the steps' means.
    """

    sums: Mapping[str, Array]
    weight: Array


@dataclass(frozen=True)
class Shard:
    """One device's piece of a variable.

    Attributes:
      start: index of its first entry in each dim of the whole variable.
      array: the piece: a host array, or a device array, which NumPy copies to the host on demand.
      whole: shape of the whole variable.
    """

    start: tuple[int, ...]
    array: Array
    whole: tuple[int, ...]


def part_of(state: Mapping[str, Array], path: str, index: tuple[slice, ...]) -> Array:
    """Returns a part of a whole array; a state with a method `part`, such as a checkpoint, reads no more than that."""
    read = getattr(state, "part", None)
    if read is None:
        return state[path][index]
    part: Array = read(path, index)
    return part


def shape_of(state: Mapping[str, Array], path: str) -> tuple[int, ...]:
    """Returns the shape of a whole array; a state with a method `shape` reads no array for it."""
    read = getattr(state, "shape", None)
    if read is None:
        return tuple(state[path].shape)
    return tuple(read(path))


def as_called(inputs: dict[str, T]) -> T | dict[str, T]:
    """Returns a model's argument: its only input, whatever its name, or all of them by name."""
    if len(inputs) > 1:
        return inputs
    return next(iter(inputs.values()))


@dataclass(frozen=True)
class PlainModel:
    """A run's model on one device, without a mesh.

    Attributes:
      model: called with what `Task.inputs` returns and `training`: a tf_keras model, a tf.Module or a Keras 3 model.
      keras: the same network as a Keras model, for a file in Keras's own format.
      package: of that model, `keras` or `tf_keras`.
    """

    model: Any
    keras: Any
    package: str


@dataclass(frozen=True)
class VariableInfo:
    """The shape of a whole variable and its sharding: a spec has one entry per dim, a mesh axis or None."""

    shape: tuple[int, ...]
    dtype: str
    spec: tuple[str | None, ...]
    bytes_per_device: int


# The "layer" that provides a model's inputs; `(inputs)/<name>` if there are several.
INPUTS = "(inputs)"


@dataclass(frozen=True)
class LayerInput:
    """One whole input of a layer for one global batch.

    `layer` is the path of the layer that provides it, or `INPUTS`; empty if the engine does not know it.
    """

    layer: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LayerOutput:
    """One whole output of a layer for one global batch, for the plan's activations and operations.

    `layer` is the path of its variables before the last `/`, `kind` the name of its class. All but one of
    a call's outputs are `is_extra`: the main one is the first with the examples, or the first if none has them.
    """

    layer: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    inputs: tuple[LayerInput, ...] = ()
    is_extra: bool = False

    @property
    def has_examples(self) -> bool:
        """Whether it has the dim of the layer's input; a table that a layer passes on has not."""
        return not self.inputs or self.inputs[0].shape[:1] == self.shape[:1]


@dataclass(frozen=True)
class Collective:
    """Communication of one training step, of one kind over one axis.

    Attributes:
      kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast` or `permute` (each device to one).
      axis: mesh axis, or several joined by `+`, over whose devices it runs.
      phase: `forward`, `backward` or `update`.
      origin: canonical path of the variable, or of the layer, that it serves; empty if the program does not tell.
      count: number of collectives that one device takes part in.
      bytes: of all of them, what one device puts in (all_reduce, reduce_scatter, all_to_all, permute) or gets out
        (all_gather).
    """

    kind: str
    axis: str
    phase: str
    origin: str
    count: int
    bytes: int


@dataclass(frozen=True)
class ProgramCost:
    """A compiler's count of the memory and operations of a step on one device.

    Attributes:
      reused_bytes: outputs that are written over arguments (donated buffers).
      accessed_bytes: memory traffic of one step, read and written; 0: not counted.
      peak_bytes: of arguments, results and temporaries together, at the moment that needs most; 0: not counted.
    """

    argument_bytes: int
    output_bytes: int
    reused_bytes: int
    temporary_bytes: int
    flops: float
    accessed_bytes: float
    peak_bytes: int = 0


@dataclass(frozen=True)
class LossShapes:
    """Sizes of a loss in chunks: T tokens of a row, D features of a token, V logits of a token."""

    tokens: int
    features: int
    vocabulary: int


@dataclass(frozen=True)
class TracedSizes:
    """What a traced forward pass has shown of a model.

    Attributes:
      losses: distinct sizes of the losses in chunks.
      heads: numbers of heads of the 4-dim operands of each distinct attention: of queries and of keys.
    """

    losses: tuple[LossShapes, ...] = ()
    heads: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class LossSplit:
    """How a mesh splits the losses in chunks.

    Attributes:
      chunks: C of each loss; 0: its logits are computed whole.
      examples: P, parts of a microbatch's examples.
      sequence: S, parts of a row's tokens.
    """

    chunks: tuple[int, ...]
    examples: int
    sequence: int

    @property
    def joined(self) -> LossSplit:
        """Returns the split into one part, in one chunk unless a loss is computed whole."""
        return LossSplit(tuple(min(count, 1) for count in self.chunks), 1, 1)
