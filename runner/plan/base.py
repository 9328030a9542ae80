"""What a plan says. Plain frozen data, which `to_dict` turns into what plan.json holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from runner.engine.base import ProgramCost

FORMAT = 1  # of plan.json
Basis = Literal["counted", "estimated"]


@dataclass(frozen=True)
class VariablePlan:
    """One variable of the model.

    Attributes:
      path: canonical path.
      shape: the whole variable's.
      dtype: as `float32`.
      rule: where the rule that caught it is written; empty where none did and it lies whole on every device.
      spec: one entry a dim, an axis name or None.
      trained: it has a gradient.
      bytes: of the whole variable.
      bytes_per_device: of the part that one device holds.
      slot_bytes_per_device: of the part of its optimizer slots that one device holds.
      moved_bytes: what a device communicates of it and of its gradient in one step, counted in the step's program.
      passed: optional rules that it did not fit, in words.
      reason: why it lies so, where the rule knows: "4 heads of block_0/attention, model divides them".
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
    """What one layer leaves behind and computes, estimated from its output's shape.

    Attributes:
      layer: canonical path.
      kind: the layer's class.
      shape: of the whole output for one global batch, or for one micro-batch.
      spec: how the output is taken to be split.
      bytes_per_device: of the output's part on one device.
      flops_per_device: floating-point operations of one training step on one device.
    """

    layer: str
    kind: str
    shape: tuple[int, ...]
    spec: tuple[str | None, ...]
    bytes_per_device: int
    flops_per_device: int


@dataclass(frozen=True)
class Total:
    """Bytes of one kind.

    Attributes:
      bytes: of the whole arrays.
      bytes_per_device: of what one device holds.
      source: `counted` from the arrays as they lie, or `estimated`.
    """

    bytes: int
    bytes_per_device: int
    source: Basis


@dataclass(frozen=True)
class Traffic:
    """The collectives of one kind, axis and phase of a training step, counted in its program.

    Attributes:
      kind: as in `runner.engine.base.Collective`.
      axis: mesh axis, or several joined by `+`.
      phase: `forward`, `backward` or `update`.
      count: collectives that a device takes part in.
      bytes: of all of them, as in `runner.engine.base.Collective`.
      seconds: that the rates give for these bytes, without latency.
      crosses: whether the devices lie in several processes.
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
    """What times are reckoned with.

    Attributes:
      device: `cpu`, `gpu` or `tpu`.
      bandwidth_gb_s: GB/s that one device sends to its neighbor.
      gflops: 1e9 floating-point operations a second of one device.
      note: where the numbers come from.
      network_gb_s: GB/s that one device sends to a device of another process; null: there is none.
    """

    device: str
    bandwidth_gb_s: float
    gflops: float
    note: str
    network_gb_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """What a run will hold, move and compute.

    Attributes:
      choices: group to option, as `layout` to `megatron`.
      engine: name of the engine.
      axes: mesh axis to size.
      batch_size: global.
      variables: in the model's order.
      layers: in the model's order.
      totals: `parameters`, `gradients`, `slots` and `activations` (of all layers, kept for the backward pass);
        `copies` of parameters in the dtype of their use, where that is narrower.
      traffic: forward, backward, update.
      rates: what times are reckoned with.
      compute_seconds: of one training step on one device at those rates.
      warnings: of the layout's lint.
      program: what the step's program takes of a device, where its compiler counts it.
      proposed: the layout that `layout=auto` stands for, as YAML with its reasons; empty for other layouts.
      processes: that share the mesh out.
      crossing: axes whose devices lie in several of them.
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
    proposed: str = ""
    processes: int = 1
    crossing: tuple[str, ...] = ()

    @property
    def flops_per_device(self) -> int:
        """Returns the floating-point operations of one training step on one device."""
        return sum(layer.flops_per_device for layer in self.layers)

    @property
    def largest_activations(self) -> list[LayerPlan]:
        """Returns the layers whose outputs take most of a device, largest first."""
        return sorted(self.layers, key=lambda layer: -layer.bytes_per_device)

    def metrics(self) -> dict[str, float]:
        """Returns figures by which runs are compared: what a device holds, communicates and computes in a step."""
        held = sum(self.totals[kind].bytes_per_device for kind in ("parameters", "gradients", "slots"))
        moved = sum(each.bytes for each in self.traffic)
        return {
            "plan/bytes_per_device": float(held),
            "plan/collective_bytes": float(moved),
            "plan/flops_per_device": float(self.flops_per_device),
        }

    def to_dict(self) -> dict[str, object]:
        """Returns what plan.json holds."""
        return {"format": FORMAT, **asdict(self), "flops_per_device": self.flops_per_device}
