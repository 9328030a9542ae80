"""Compares two training steps on the mesh with NumPy before a run starts.

With its all-reduce combiner on, DTensor moves operations across the writes of variables, without an error: tf_keras's
optimizers then update the weights with the previous step's moments. On MNIST with 8 devices the first epoch ends at
91.2% instead of 93.4%, and the loss looks plausible. So each run checks its own TensorFlow on its own mesh.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.data.base import Array
from runner.engine.dtensor import packed
from runner.engine.dtensor.arrays import pack, unpack, zeros
from runner.engine.dtensor.variable_reads import read_value
from runner.errors import EngineError

# The first step updates the weights from slots of 0 and the second from slots that were written, so a stale read of
# either kind shows.
_STEPS = 2
_RATE = 0.1
_MOMENTUM = 0.9
# Two float32 steps over sums of 24 terms stay within 1e-6; an update that is one step stale is off by 1e-2 and more.
TOLERANCE = 1e-5


def check(mesh: dtensor.Mesh, batch_axis: str | None, *, reread: bool) -> None:
    """Compares two momentum steps of a two-layer net on the mesh with NumPy.

    With `reread` the step reads a slot back after assigning it, as a stock optimizer does and a model's own code may.
    DTensor's all-reduce combiner breaks this order, so it is checked only if that is off. Else the step reads
    everything before it writes, as the engine's own step does, and sums the first layer's gradients as one vector.

    Raises:
      EngineError: a weight differs by more than `TOLERANCE`.
    """
    rng = np.random.default_rng(0)
    # Rows for every device of the batch axis, so that each one adds a share to every gradient.
    rows = 8 * max(1, _size(mesh, batch_axis))
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    y = rng.normal(size=(rows, 2)).astype(np.float32)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 4), (4,), (4, 2))]
    expected = _numpy_steps(x.astype(np.float64), y, [weight.astype(np.float64) for weight in weights])
    actual = _mesh_steps(mesh, batch_axis, x, y, weights, reread=reread)
    worst = max(float(np.abs(a - b).max()) for a, b in zip(expected, actual, strict=True))
    # Not `worst > TOLERANCE`: a NaN must fail too.
    if not worst <= TOLERANCE:
        axes = dict(zip(mesh.dim_names, mesh.shape(), strict=True))
        raise EngineError(
            f"the canary failed: two training steps on mesh {axes} "
            f"differ from NumPy by {worst:.2e} (tolerance {TOLERANCE:.0e}), so this TensorFlow computes wrong numbers "
            "there; set engine.combine_all_reduces=false, or mesh=single if it is false already"
        )


def _size(mesh: dtensor.Mesh, axis: str | None) -> int:
    if axis is None:
        return 1
    return int(mesh.dim_size(axis))


def _mesh_steps(
    mesh: dtensor.Mesh, axis: str | None, x: Array, y: Array, weights: list[Array], *, reread: bool
) -> list[Array]:
    """Returns the weights (3, 4), (4,) and (4, 2) after the steps on the mesh."""
    variables = []
    for weight in weights:
        replicated = dtensor.Layout.replicated(mesh, weight.ndim)
        variables.append(dtensor.DVariable(pack(weight, replicated)))
    slots = list(map(zeros, variables))
    batch = dtensor.Layout([axis or dtensor.UNSHARDED, dtensor.UNSHARDED], mesh)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def canary_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(x, variables[0]) + variables[1])
            loss = tf.reduce_mean(tf.square(tf.matmul(hidden, variables[2]) - y))
        gradients = tape.gradient(loss, variables)
        if not reread:
            vector = packed.summed(gradients[:2], _size(mesh, axis))
            if vector is not None:
                gradients[:2] = packed.unpack(vector, gradients[:2])
        velocities = []
        for slot, gradient in zip(slots, gradients, strict=True):
            velocities.append(_MOMENTUM * slot.read_value() - _RATE * gradient)
        if reread:
            for slot, velocity in zip(slots, velocities, strict=True):
                slot.assign(velocity)
            velocities = list(map(read_value, slots))
        new_values = []
        for variable, velocity in zip(variables, velocities, strict=True):
            new_values.append(variable.read_value() + velocity)
        for variable, new_value, slot, velocity in zip(variables, new_values, slots, velocities, strict=True):
            variable.assign(new_value)
            if not reread:
                slot.assign(velocity)

    for _ in range(_STEPS):
        canary_step(pack(x, batch), pack(y, batch))
    return list(map(unpack, variables))


def _numpy_steps(x: Array, y: Array, weights: list[Array]) -> list[Array]:
    """Returns the weights after the same steps in float64."""
    weights = list(weights)
    slots: list[Array] = list(map(np.zeros_like, weights))
    for _ in range(_STEPS):
        hidden = np.tanh(x @ weights[0] + weights[1])
        error = 2 * (hidden @ weights[2] - y) / y.size
        inner = (error @ weights[2].T) * (1 - hidden**2)
        gradients = [x.T @ inner, inner.sum(0), hidden.T @ error]
        for index, gradient in enumerate(gradients):
            slots[index] = _MOMENTUM * slots[index] - _RATE * gradient
            weights[index] = weights[index] + slots[index]
    return weights
