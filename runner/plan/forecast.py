"""Verdict on hardware that is not here: whether a run fits, how long a step is, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.config.schema import HardwareConfig, PlanConfig
from runner.engine.base import ProgramCost
from runner.plan import limits, memory
from runner.plan.base import Forecast, MemoryPart, Traffic

_GIB = 1 << 30
COMPUTE = "compute"
MEMORY = "memory"
LINKS = "links"
# Times that a step's state is read or written: weights in both passes and in the update, gradients written and read,
# optimizer state read and written.
_STATE_PASSES = 3
# What follows was fitted to published runs by `python -m benchmarks.plans`.
# Fused attention needs so many times the time of other products of as many FLOPs, though it skips half of them: its
# products are small, and the softmax between them is not a product.
_ATTENTION_COST = 1.45
# Times that the result of a product goes through the device's memory per pass, with the element-wise operations after
# it: biases, norms, activation functions, residual sums.
_PASSES_PER_PRODUCT = 5.0
# Forward pass, and gradients of inputs and of weights.
_PASSES = 3
# Collectives attain this share of the links' bandwidth: the middle, and the range from the slowest to the fastest. Of
# published runs, one over 64 GPUs attains half of it.
LINK_EFFICIENCY = 0.67
_LINK_RANGE = (0.5, 0.9)


@dataclass(frozen=True)
class Work:
    """What one device computes in a step, with the forward pass that activation checkpointing repeats.

    Attributes:
      attention_flops: those of `flops` that are attention's own products.
      product_bytes: of the results of all products, in one forward pass of the whole step; with a third of those that
        a fourth pass repeats.
    """

    flops: float
    attention_flops: float = 0.0
    product_bytes: float = 0.0


def forecast(
    hardware: HardwareConfig,
    plan: PlanConfig,
    precision: str,
    parts: tuple[MemoryPart, ...],
    traffic: Sequence[Traffic],
    work: Work,
    *,
    tokens: int,
    program: ProgramCost | None = None,
    is_transformer: bool = False,
) -> Forecast:
    """Returns the verdict on the hardware, of steps of so many tokens in a precision."""
    # `work.flops` has those of attention once already.
    compute = _compute_seconds(hardware, plan, precision, work.flops + (_ATTENTION_COST - 1) * work.attention_flops)
    state = sum(part.bytes for part in parts if part.kind in memory.STATE)
    moved = _STATE_PASSES * state + _PASSES * _PASSES_PER_PRODUCT * work.product_bytes
    memory_seconds = 0.0
    if hardware.memory_gb_s:
        memory_seconds = moved / (hardware.memory_gb_s * 1e9)
    link_seconds = sum(group.seconds for group in traffic)
    # Products and element-wise operations follow each other on a device; collectives run beside them.
    slow_links, fast_links = _LINK_RANGE
    fastest = max(compute[0] + memory_seconds, link_seconds / fast_links)
    slowest = max(compute[1] + memory_seconds, link_seconds / slow_links)
    parts_of_step = times(compute, memory_seconds, link_seconds)
    if program is not None:
        parts = compiled_parts(parts, program)
    memory_bytes = round((hardware.memory_gib or 0.0) * _GIB)
    share = limits.share(hardware.kind, sum(part.bytes for part in parts), memory_bytes)
    return Forecast(
        hardware=hardware.name,
        depth=plan.compiler,
        capacity_bytes=round((share or 1.0) * memory_bytes),
        memory=parts,
        compute_seconds=compute,
        memory_seconds=memory_seconds,
        link_seconds=link_seconds,
        step_seconds=(fastest, slowest),
        bound=max(parts_of_step, key=lambda name: parts_of_step[name]),
        tokens=tokens,
        memory_share=share,
        is_transformer=is_transformer,
    )


def times(compute_seconds: tuple[float, float], memory_seconds: float, link_seconds: float) -> dict[str, float]:
    """Returns the seconds that a step consists of, by what takes them: the middle of the range of products' times."""
    return {COMPUTE: sum(compute_seconds) / 2, MEMORY: memory_seconds, LINKS: link_seconds / LINK_EFFICIENCY}


def _compute_seconds(hardware: HardwareConfig, plan: PlanConfig, precision: str, flops: float) -> tuple[float, float]:
    """Returns the time of a step's products at the largest and the smallest attained share of the peak rate."""
    low, high = hardware.efficiency
    if plan.gflops is not None:
        stated = plan.gflops * 1e9
        return flops / (high * stated), flops / (low * stated)
    peaks = hardware.peak_tflops
    # A user's hardware may state the rate of one dtype only.
    peak = peaks.get(precision) or max(peaks.values())
    return flops / (high * peak * 1e12), flops / (low * peak * 1e12)


def compiled_parts(parts: Sequence[MemoryPart], program: ProgramCost) -> tuple[MemoryPart, ...]:
    """Returns memory by kind, in the order of `memory.parts`, with the compiler's total.

    The compiler gives arguments and temporaries only: state is counted by arithmetic, and activations are the
    estimated ones as far as its temporaries reach.
    """
    *compiled, gradients, activations, _ = parts
    state = sum(part.bytes for part in compiled)
    peak = program.peak_bytes or program.argument_bytes + program.temporary_bytes
    rest = max(peak - state, 0)
    for part in (activations, gradients):
        share = min(part.bytes, rest)
        rest -= share
        compiled.append(MemoryPart(part.kind, share, "estimated"))
    compiled.append(MemoryPart(memory.TEMPORARIES, rest, "compiled"))
    return tuple(compiled)
