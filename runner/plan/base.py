"""The plan as frozen data, and what plan.json stores of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from runner.engine.base import ProgramCost
from runner.plan import limits

# Version of plan.json.
FORMAT = 1
# Depths of a forecast: shapes and shardings without a compiler, and the hardware's own compiler.
ARITHMETIC = "arithmetic"
TARGET = "target"

# Verdicts, the best first.
FITS = "fits"
MAY_FIT = "may not fit"
TOO_LARGE = "does not fit"
# Estimates of a transformer's memory that are so many times a device's memory are too large, whatever the compiler
# does: those of whole programs were at most 1.2 times what it counts, see docs/h200.md and docs/advise.md. Estimates
# of convolutions may be five times what it counts.
_MOST_OVERESTIMATED = 1.25

Basis = Literal["counted", "estimated", "compiled"]


@dataclass(frozen=True)
class VariablePlan:
    """One variable of the model; `shape` and `bytes` are those of the whole variable.

    Attributes:
      rule: such as `layout.rules[2]`; empty if none matched and the variable is replicated.
      spec: one entry per dim, an axis name or None.
      moved_bytes: that a device communicates per step for the variable and its gradient.
      passed: optional rules that did not fit the variable, in words.
      reason: why the variable has this spec, if the rule knows: "4 heads of block_0/attention, model divides them".
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    rule: str
    spec: tuple[str | None, ...]
    trained: bool
    bytes: int
    bytes_per_device: int
    slot_bytes_per_device: int
    moved_bytes: int
    passed: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class LayerPlan:
    """The output of one layer, and its FLOPs in a training step, estimated from the output's shape.

    Attributes:
      shape: of the whole output for one global batch, or for one microbatch.
      spec: how the output is assumed to be sharded.
    """

    layer: str
    kind: str
    shape: tuple[int, ...]
    spec: tuple[str | None, ...]
    bytes_per_device: int
    flops_per_device: int


@dataclass(frozen=True)
class Total:
    """Bytes of all arrays of one kind: `counted` from those on the mesh, or `estimated`."""

    bytes: int
    bytes_per_device: int
    source: Basis


@dataclass(frozen=True)
class Traffic:
    """The collectives of one kind, axis and phase of a training step, as in `runner.engine.base.Collective`.

    Attributes:
      seconds: time for these bytes at the plan's rates, without latency.
      crosses: whether the devices are in several processes.
    """

    kind: str
    axis: str
    phase: str
    count: int
    bytes: int
    seconds: float
    crosses: bool = False


@dataclass(frozen=True)
class Rates:
    """Rates of one device that times are estimated with.

    Attributes:
      bandwidth_gb_s: GB/s that one device sends to its neighbor.
      note: source of the numbers.
      network_gb_s: GB/s that one device sends to a device of another process; None if there is one process.
      joins_nodes: whether the network joins nodes of hardware that is not here, instead of processes.
    """

    device: str
    bandwidth_gb_s: float
    gflops: float
    note: str
    network_gb_s: float | None = None
    joins_nodes: bool = False


@dataclass(frozen=True)
class MemoryPart:
    """One kind of arrays in a device's memory at the peak of a step.

    `source`: `counted` from shapes and shardings, `estimated`, or `compiled` by the target's compiler.
    """

    kind: str
    bytes: int
    source: Basis


@dataclass(frozen=True)
class Forecast:
    """What a run needs of the hardware that it is planned for. Ranges are (fastest, slowest).

    Attributes:
      depth: `arithmetic` or `target`.
      capacity_bytes: of one device's memory that a program can use; 0: not known.
      compute_seconds: of one step's products at the attained shares of the peak rate.
      memory_seconds: of the state and the results of products, which go through the device's memory.
      link_seconds: of all collectives at the links' whole bandwidth.
      step_seconds: of one step, at the largest and the smallest attained share of the peak rate. Each is the sum of
        compute and memory, or the time of the collectives at the bandwidth that they attain, if that is longer: these
        run beside the rest.
      bound: what takes longest: `compute`, `memory` or `links`.
      tokens: of a step; 0: the task counts none.
      memory_share: `capacity_bytes` is this share of a device's memory, which JAX reserves; 0: it reserves none.
      is_transformer: whether the model is one, whose memory is never estimated much too large.
      mixture: what a mixture of experts computes more than its tokens use, in words; empty: the model is none.
      undivided: why FSDP shards less than it could, in words; empty: it does not.
      split_axes: the mesh of as many devices on which it shards the most; empty: the config's.
    """

    hardware: str
    depth: str
    capacity_bytes: int
    memory: tuple[MemoryPart, ...]
    compute_seconds: tuple[float, float]
    memory_seconds: float
    link_seconds: float
    step_seconds: tuple[float, float]
    bound: str
    tokens: int
    memory_share: float = 0.0
    is_transformer: bool = False
    mixture: str = ""
    undivided: str = ""
    split_axes: Mapping[str, int] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """Returns one device's memory at the peak of a step."""
        return sum(part.bytes for part in self.memory)

    @property
    def fits(self) -> bool:
        """Returns whether a device has as much memory."""
        return not self.capacity_bytes or self.peak_bytes <= self.capacity_bytes

    @property
    def state_fits(self) -> bool:
        """Returns whether what does not depend on estimates fits: the state, or all that a compiler counts."""
        if self.fits or self.depth != ARITHMETIC:
            return self.fits
        return sum(part.bytes for part in self.memory if part.source == "counted") <= self.capacity_bytes

    @property
    def verdict(self) -> str:
        """Returns whether a step fits; `MAY_FIT`: only estimates are above the memory, and not by far."""
        if self.fits:
            return FITS
        is_far_too_large = self.is_transformer and self.peak_bytes > _MOST_OVERESTIMATED * self.capacity_bytes
        if is_far_too_large or not self.state_fits:
            return TOO_LARGE
        return MAY_FIT

    @property
    def setting(self) -> str:
        """Returns what the command has to set so that JAX reserves as much memory; empty: nothing."""
        needs_more = self.peak_bytes * self.memory_share > limits.DEFAULT * self.capacity_bytes
        if not needs_more or self.memory_share <= limits.DEFAULT:
            return ""
        return f"{limits.VARIABLE}={self.memory_share:g}"


@dataclass(frozen=True)
class Plan:
    """Memory, communication and compute of a run; variables and layers are in the model's order.

    Attributes:
      choices: option by group, such as `layout` to `megatron`.
      batch_size: global.
      totals: `parameters`, `gradients`, `slots` and `activations` (of all layers, kept for the backward pass);
        `copies` of parameters in the dtype that layers use, if that is narrower than the stored one.
      traffic: forward, backward, update.
      compute_seconds: of one training step on one device at those rates.
      warnings: of the layout's lint.
      program: memory and operations of the step's program per device, if its compiler counts them.
      machines: that share a mesh of virtual CPU devices; 1: all processes are on this one.
      crossing: axes whose devices are in several processes.
      steps: training steps of the run; 0: not known.
      schedule: the learning rate's schedule in words; empty if it is constant.
      forecast: verdict, memory and step time on hardware that is not here; None: it is this machine's.
    """

    choices: Mapping[str, str]
    engine: str
    axes: Mapping[str, int]
    batch_size: int
    variables: tuple[VariablePlan, ...]
    layers: tuple[LayerPlan, ...]
    totals: Mapping[str, Total]
    traffic: tuple[Traffic, ...]
    rates: Rates
    compute_seconds: float
    warnings: tuple[str, ...] = ()
    program: ProgramCost | None = None
    processes: int = 1
    machines: int = 1
    crossing: tuple[str, ...] = ()
    steps: int = 0
    schedule: str = ""
    forecast: Forecast | None = None

    @property
    def flops_per_device(self) -> int:
        """Returns the floating-point operations of one training step on one device."""
        return sum(layer.flops_per_device for layer in self.layers)

    def metrics(self) -> dict[str, float]:
        """Returns the figures that runs are compared by: memory, communication and FLOPs per device and step."""
        # Without activations, whose bytes are estimated: these figures compare runs, and are equal where runs are.
        state_bytes = sum(self.totals[kind].bytes_per_device for kind in ("parameters", "gradients", "slots"))
        collective_bytes = sum(group.bytes for group in self.traffic)
        return {
            "plan/bytes_per_device": float(state_bytes),
            "plan/collective_bytes": float(collective_bytes),
            "plan/flops_per_device": float(self.flops_per_device),
        }

    def to_dict(self) -> dict[str, object]:
        """Returns the content of plan.json."""
        # `asdict` leaves properties out.
        return {"format": FORMAT, **asdict(self), "flops_per_device": self.flops_per_device}
