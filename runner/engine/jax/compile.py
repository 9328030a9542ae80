"""Decides how the engine `jax` compiles and runs a model's steps."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.stages import Compiled, Lowered

from runner.config.schema import RunConfig
from runner.engine.base import ProgramCost
from runner.engine.jax import private
from runner.engine.jax.adapter import reason
from runner.engine.jax.state import State
from runner.engine.jax.step import Step
from runner.engine.jax.traces import equations
from runner.errors import ConfigError
from runner.layout import mesh

logger = logging.getLogger(__name__)

Options = Mapping[str, bool | int | str]

# NHWC, HWIO, NHWC, as JAX has them: dims of batch or output channels, then of channels, then of height and width. See
# `runner.engine.jax.layers.convolution`.
_LOOP_FORM = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
# XLA's CPU compiler hands convolutions, matrix products and sums to the library YNNPACK where it thinks that it can.
# Its convolutions, of weight gradients above all, take up to twice as long as Eigen's, which are used without it, and
# its products up to 1.4 times as long; its sums are faster.
FOR_CPUS: Options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}
# For a program that is not run: how XLA partitions and merges it, without making fast code of it. By the usual options
# most of a compilation for CPUs is LLVM's work, after all that is read here.
TO_READ: Options = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@dataclass(frozen=True)
class ExecutionMode:
    """How a model's steps are compiled and run.

    Attributes:
      loop_on_device: the steps of a call are one program; else each is dispatched on its own.
      on_cpus: where they run.
    """

    loop_on_device: bool
    on_cpus: bool


def choose(
    step: Step,
    state: State[jax.Array],
    trainable: Sequence[str],
    config: RunConfig,
    batch: Mapping[str, jax.ShapeDtypeStruct],
) -> ExecutionMode:
    """Traces the gradients, and chooses by the operations that they take.

    Args:
      step: the model's functions.
      state: as the step reads it.
      trainable: paths of its trainable variables.
      config: the run's.
      batch: arrays (B, ...) of a micro-batch by name.

    Raises:
      ConfigError: a training step of the model raises; the loss does not depend on a trainable variable.
    """
    count = jax.ShapeDtypeStruct((), np.float32)
    microstep = jax.ShapeDtypeStruct((), np.int32)

    def learned(*arguments: Any) -> tuple[list[jax.Array], jax.Array, jax.Array]:
        gradients, (loss_b, _, regularization, _) = step.gradients(*arguments)
        return gradients, loss_b, regularization

    try:
        traced = jax.make_jaxpr(learned)(state, dict(batch), count, microstep)
    except (ConfigError, jax.errors.UnexpectedTracerError):
        raise
    except Exception as error:  # whatever a user's layers raise
        raise ConfigError(
            f"model._target_={config.model.target}: a training step of the model raised {reason(error)}"
        ) from error
    _, is_read = private.without_unused(traced.jaxpr)
    unused = [path for path, each in zip(trainable, is_read, strict=False) if not each]
    if unused:
        left = "|".join(map(re.escape, unused))
        more = f" and {len(unused) - 4} more" if len(unused) > 4 else ""
        raise ConfigError(
            f"model._target_={config.model.target}: the loss does not depend on trainable variable "
            f"{', '.join(unused[:4])}{more}; use it, make it trainable=False, or leave it out of what is trained: "
            f"++model.trainable=\"['(?!({left})$).*']\""
        )
    wanted = config.engine.loop
    device = mesh.device_kind(config.mesh)
    on_cpus = device == "cpu"
    slow = slow_in_loops(traced.jaxpr)
    loops = not (slow and on_cpus) if wanted == "auto" else wanted == "device"
    logger.info(
        "the steps of a call run %s (engine.loop=%s; convolutions that loops on CPUs make slow: %d, devices: %s)",
        "in a loop on the devices" if loops else "as a program each",
        wanted,
        slow,
        device,
    )
    return ExecutionMode(loops, on_cpus)


def slow_in_loops(traced: jax.core.Jaxpr) -> int:
    """Returns the number of convolutions whose form XLA's CPU compiler changes, which it does outside of loops alone.

    Args:
      traced: what it calls is counted too.
    """
    convolutions = [one.params for one in equations(traced.eqns) if one.primitive.name == "conv_general_dilated"]
    return sum(
        (*params["dimension_numbers"], params["feature_group_count"], params["batch_group_count"])
        != (*_LOOP_FORM, 1, 1)
        for params in convolutions
    )


def compiled(lowered: Lowered, options: Options) -> Compiled:
    """Compiles a program with options, or without where this version of XLA does not know them.

    Args:
      lowered: what `jax.jit(...).lower(...)` gave.
      options: `FOR_CPUS`, `TO_READ`, or none.
    """
    try:
        return lowered.compile(compiler_options=dict(options) or None)
    except jax.errors.JaxRuntimeError as error:
        if not any(name in str(error) for name in options):
            raise
        logger.info("compiled without options that this version of XLA does not know: %s", error)
        return lowered.compile()


def program_cost(program: Compiled, microbatches: int) -> ProgramCost | None:
    """Returns what XLA counts of a compiled program on one device; of a loop, its body once.

    Args:
      program: a round of it computes one micro-batch.
      microbatches: of a step.
    """
    memory = program.memory_analysis()
    counted = program.cost_analysis()
    if memory is None or not counted:
        return None
    return ProgramCost(
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        reused_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        flops=microbatches * float(counted.get("flops", 0.0)),
        accessed_bytes=microbatches * float(counted.get("bytes accessed", 0.0)),
    )
