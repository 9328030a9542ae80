"""Two checked steps on the mesh before training: does this TensorFlow compute on this mesh what numpy computes?"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.data.base import Array
from runner.engine.dtensor import packed
from runner.engine.dtensor.arrays import pack, unpack, zeros
from runner.engine.dtensor.packing import Packing
from runner.errors import EngineError

_STEPS = 2
_RATE = 0.1
_MOMENTUM = 0.9
# Two float32 steps over sums of 24 terms stay within 1e-6; an update that is one step stale is off by 1e-2 and more.
TOLERANCE = 1e-5


def check(mesh: dtensor.Mesh, batch_axis: str | None, *, reread: bool) -> None:
    """Runs two momentum steps of a two-layer net and compares every weight with numpy.

    Args:
      mesh: DTensor mesh that training will use.
      batch_axis: mesh axis that splits batches, None where none does.
      reread: the step reads a slot back after assigning it, as a stock optimizer does and a model's own code may.
        DTensor's all-reduce combiner breaks this order, so it holds only where that is off. Else the step reads all
        before it writes, as the engine's own does, and sums the gradients of the first layer as one vector.

    Raises:
      EngineError: a weight differs by more than `TOLERANCE`.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * max(1, _size(mesh, batch_axis)), 3)).astype(np.float32)
    y = rng.normal(size=(len(x), 2)).astype(np.float32)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 4), (4,), (4, 2))]
    expected = _numpy_steps(x.astype(np.float64), y, [w.astype(np.float64) for w in weights])
    got = _mesh_steps(mesh, batch_axis, x, y, weights, reread=reread)
    worst = max(float(np.abs(a - b).max()) for a, b in zip(expected, got, strict=True))
    if not worst <= TOLERANCE:
        raise EngineError(
            f"the canary failed: two training steps on mesh {dict(zip(mesh.dim_names, mesh.shape(), strict=True))} "
            f"differ from numpy by {worst:.2e}, allowed is {TOLERANCE:.0e}; this TensorFlow computes wrongly there, "
            "set engine.combine_all_reduces=false, or mesh=single if it is"
        )


def _size(mesh: dtensor.Mesh, axis: str | None) -> int:
    return int(mesh.dim_size(axis)) if axis else 1


def _mesh_steps(
    mesh: dtensor.Mesh, axis: str | None, x: Array, y: Array, weights: list[Array], *, reread: bool
) -> list[Array]:
    replicated = [dtensor.Layout.replicated(mesh, w.ndim) for w in weights]
    variables = [dtensor.DVariable(pack(w, where)) for w, where in zip(weights, replicated, strict=True)]
    slots = [zeros(variable) for variable in variables]
    first_layer = Packing(("w", "b"), ((3, 4), (4,)), _size(mesh, axis))
    batch = dtensor.Layout([axis or dtensor.UNSHARDED, dtensor.UNSHARDED], mesh)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def canary_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(x, variables[0]) + variables[1])
            loss = tf.reduce_mean(tf.square(tf.matmul(hidden, variables[2]) - y))
        gradients = tape.gradient(loss, variables)
        if not reread:
            gradients[:2] = packed.unpack(first_layer, packed.summed(first_layer, gradients[:2]))
        values = [_MOMENTUM * slot.read_value() - _RATE * g for slot, g in zip(slots, gradients, strict=True)]
        if reread:
            for slot, value in zip(slots, values, strict=True):
                slot.assign(value)
            values = [slot.read_value() for slot in slots]
        news = [variable.read_value() + value for variable, value in zip(variables, values, strict=True)]
        for variable, new, slot, value in zip(variables, news, slots, values, strict=True):
            variable.assign(new)
            if not reread:
                slot.assign(value)

    for _ in range(_STEPS):
        canary_step(pack(x, batch), pack(y, batch))
    return [unpack(variable) for variable in variables]


def _numpy_steps(x: Array, y: Array, weights: list[Array]) -> list[Array]:
    slots: list[Array] = [np.zeros_like(w) for w in weights]
    for _ in range(_STEPS):
        hidden = np.tanh(x @ weights[0] + weights[1])
        error = 2 * (hidden @ weights[2] - y) / y.size
        inner = (error @ weights[2].T) * (1 - hidden**2)
        gradients = [x.T @ inner, inner.sum(0), hidden.T @ error]
        slots = [_MOMENTUM * slot - _RATE * g for slot, g in zip(slots, gradients, strict=True)]
        weights = [w + slot for w, slot in zip(weights, slots, strict=True)]
    return weights
