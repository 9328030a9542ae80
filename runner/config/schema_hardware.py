"""The part of the run config that describes hardware which a run is planned for. Imports no TensorFlow or JAX."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.config.fields import checked, choice, integer, number, text, valid_if

# The name of the option that plans for this machine's devices.
HERE = "here"

# Names of dtypes whose rates differ between devices.
_DTYPE = re.compile(r"float32|bfloat16")


@dataclass(frozen=True)
class HardwareConfig:
    """Devices that `runner.plan` plans for; they need not be here.

    Attributes:
      name: of the device; `here`: the devices of this machine.
      kind: device type; null: as `mesh.device`.
      memory_gib: memory of one device that a program can use, in GiB.
      peak_tflops: peak rate of one device in dense matrix products, by dtype of the operands.
      memory_gb_s: bandwidth of one device's own memory in GB/s.
      link_gb_s: bandwidth from one device to the others of its node, in one direction, in GB/s.
      network_gb_s: bandwidth from one device to other nodes, in one direction, in GB/s; null: not known. A mesh
        of several nodes is then priced as `link_gb_s`, with a warning.
      node_devices: devices per node, or chips of a TPU's largest slice; null: all devices have the same links.
      target: name of the compiler's target, for `plan.compiler=target`; null: its compiler is not known.
      efficiency: attained share of `peak_tflops` in products, from the slowest to the fastest of 80% of the published
        runs; the step time is a range because of it.
    """

    name: str = text(HERE, example="h100")
    kind: str | None = choice(None, "cpu", "gpu", "tpu", example="gpu")
    memory_gib: float | None = number(None, above=0.0, unit="GiB", example=80.0)
    peak_tflops: dict[str, float] = checked(
        {},
        test=valid_if(lambda rate: rate > 0, "must be above 0"),
        rule="above 0",
        example={"bfloat16": 989.4},
        key_pattern=_DTYPE,
    )
    memory_gb_s: float | None = number(None, above=0.0, unit="GB/s", example=3350.0)
    link_gb_s: float | None = number(None, above=0.0, unit="GB/s", example=450.0)
    network_gb_s: float | None = number(None, above=0.0, unit="GB/s", example=50.0)
    node_devices: int | None = integer(None, at_least=1, example=8)
    target: str | None = text(None, example="h100_sxm")
    efficiency: list[float] = checked(
        [0.45, 0.85],
        entry_names=("slowest", "fastest"),
        above=0.0,
        at_most=1.0,
        whole=valid_if(lambda shares: shares == sorted(shares), "must have the smaller share first"),
        rule="ascending",
    )

    @property
    def is_here(self) -> bool:
        """Returns whether the devices are those of this machine."""
        return self.name == HERE
