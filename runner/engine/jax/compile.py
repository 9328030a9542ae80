"""Decides how a model's steps are compiled and run, and compiles them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.stages import Compiled, Lowered

from runner.config.import_path import raised
from runner.config.schema import ModelConfig
from runner.engine.base import ProgramCost
from runner.engine.jax import private
from runner.engine.jax.residuals import equations
from runner.engine.jax.state import State
from runner.engine.jax.step import Step
from runner.errors import ConfigError

logger = logging.getLogger(__name__)

Options = Mapping[str, bool | int | str]

# Convolutions of this form are fast in a loop on CPUs: NHWC images, HWIO kernels and NHWC results, one group. The
# numbers are JAX's: dim of batch or output channels, dim of channels, then those of height and width. See
# `runner.engine.jax.layers.on_cpus`.
_FAST_DIMENSION_NUMBERS = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
_ONE_GROUP = (1, 1)
# XLA's CPU compiler hands convolutions, matrix products and sums to the library YNNPACK by its own estimate. YNNPACK's
# convolutions, most of all of weight gradients, take up to twice as long as Eigen's, which are used without it, and
# its products up to 1.4 times as long; its sums are faster.
FOR_CPUS: Options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}
# For a program that is not run: XLA partitions and merges as always, without generating fast code. With the usual
# options most of a compilation for CPUs is LLVM's work, after all that the plan reads.
TO_READ: Options = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
# What XLA's compiler for GPUs says of a product that Triton can't compute, and the option that leaves it to others.
_NO_TILING = "Couldn't find output tile sizes"
_WITHOUT_TRITON: Options = {"xla_gpu_enable_triton_gemm": False}
# Variables that an error message names.
_MOST_NAMED = 4


def loops_on_device(trace: jax.core.Jaxpr, loop: str, *, on_cpus: bool) -> bool:
    """Returns whether a call's steps run as one program, by `engine.loop` and the operations of a step's trace."""
    loops = loop == "device"
    if loop == "auto":
        loops = not on_cpus or slow_in_loops(trace) == 0
    logger.info("steps run in a loop on the devices: %s (engine.loop=%s)", loops, loop)
    return loops


def traced_gradients(
    step: Step,
    state: State[jax.Array],
    trainable: Sequence[str],
    config: ModelConfig,
    batch: Mapping[str, jax.ShapeDtypeStruct],
) -> jax.core.Jaxpr:
    """Returns the trace of a step's gradients, which reach every trainable variable.

    Raises:
      ConfigError: a training step of the model raises; the loss does not depend on a trainable variable.
    """
    count = jax.ShapeDtypeStruct((), np.float32)
    microstep = jax.ShapeDtypeStruct((), np.int32)

    # Without the outputs and the new batch statistics, which a variable without a gradient may change too.
    def learned(*arguments: Any) -> tuple[list[jax.Array], jax.Array, jax.Array]:
        gradients, (loss_b, _, regularization, _) = step.gradients(*arguments)
        return gradients, loss_b, regularization

    try:
        trace = jax.make_jaxpr(learned)(state, dict(batch), count, microstep).jaxpr
    except ConfigError:
        raise
    except Exception as error:  # A user's layers may raise anything.
        raise ConfigError(
            f"model._target_={config.target}: a training step of the model raised {raised(error)}"
        ) from error
    _check_dependence(trace, trainable, config)
    return trace


def _check_dependence(trace: jax.core.Jaxpr, trainable: Sequence[str], config: ModelConfig) -> None:
    """Raises ConfigError unless all trainable variables, the first inputs of a trace of loss and gradients, count."""
    _, is_read = private.remove_unused(trace)
    # Not strict: the inputs after the trainable variables are the rest of the state and the batch.
    unused = []
    for path, is_used in zip(trainable, is_read, strict=False):
        if not is_used:
            unused.append(path)
    if not unused:
        return
    names = ", ".join(unused[:_MOST_NAMED])
    if len(unused) > _MOST_NAMED:
        names += f" and {len(unused) - _MOST_NAMED} more"
    pattern = "|".join(map(re.escape, unused))
    raise ConfigError(
        f"model._target_={config.target}: the loss does not depend on trainable variable {names}; use it, make "
        f"it trainable=False, or leave it out of what is trained: ++model.trainable=\"['(?!({pattern})$).*']\""
    )


def slow_in_loops(trace: jax.core.Jaxpr) -> int:
    """Returns the number of convolutions that XLA brings to a form that is fast on CPUs only outside of loops."""
    slow = 0
    for equation in equations(trace):
        if equation.primitive.name != "conv_general_dilated":
            continue
        parameters = equation.params
        groups = parameters["feature_group_count"], parameters["batch_group_count"]
        if tuple(parameters["dimension_numbers"]) != _FAST_DIMENSION_NUMBERS or groups != _ONE_GROUP:
            slow += 1
    return slow


def compiled(lowered: Lowered, options: Options) -> Compiled:
    """Compiles a program with those options that this version of XLA knows.

    XLA's options come and go between versions of jaxlib, and an unknown one is an error that names it. All that they
    change is speed, so the next attempt is without it. Without a GPU, the compiler for GPUs can't compare backends by
    their speed, and takes Triton for products that it has no tiling for. These are compiled by other backends.
    """
    try:
        return lowered.compile(compiler_options=dict(options) or None)
    except jax.errors.JaxRuntimeError as error:
        if _NO_TILING in str(error):
            logger.info("compiled without Triton: %s", error)
            return lowered.compile(compiler_options={**options, **_WITHOUT_TRITON})
        known = {name: value for name, value in options.items() if name not in str(error)}
        if len(known) == len(options):
            raise
        logger.info("compiled without an option that this version of XLA does not know: %s", error)
        return compiled(lowered, known)


def program_cost(program: Compiled, microbatches: int) -> ProgramCost | None:
    """Returns what XLA counts of a compiled program on one device, which computes one micro-batch of a step's."""
    memory = program.memory_analysis()
    costs = program.cost_analysis()
    if memory is None:
        return None
    # The compiler for GPUs counts no operations.
    costs = costs or {}
    return ProgramCost(
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        reused_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        flops=microbatches * float(costs.get("flops", 0.0)),
        accessed_bytes=microbatches * float(costs.get("bytes accessed", 0.0)),
        peak_bytes=getattr(memory, "peak_memory_in_bytes", 0),
    )
