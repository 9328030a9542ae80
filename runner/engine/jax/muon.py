"""Muon, whose products of matrices are divided among the devices of the mesh."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import Mesh

from runner.engine.jax.partitioning import sharding

# Keras's own, added to a norm that may be 0.
_EPSILON = 1e-7


class DividedMuon(keras.optimizers.Muon):  # type: ignore[misc]
    """Keras's Muon on a mesh.

    Keras's class as it is has each device orthogonalize every matrix that it holds whole, which is most of the cost
    of a step: with data parallelism alone, eight devices do the same work eight times. Here each device computes the
    columns and rows that are its own. The result differs by rounding only, as sums over columns are sums of parts.

    Attributes:
      mesh: whose devices divide the work. It is set after construction, as Keras's arguments are what is recorded.
    """

    mesh: Mesh | None = None

    def zeropower_via_newtonschulz5(self, x: jax.Array, steps: int) -> jax.Array:
        """Returns the nearest orthogonal matrix, by as many steps of Newton and Schulz's iteration."""
        if x.shape[-2] > x.shape[-1]:
            return jnp.swapaxes(self.zeropower_via_newtonschulz5(jnp.swapaxes(x, -1, -2), steps), -1, -2)
        # The shorter dim is that of the rows: the square matrix of products is as small as it can be.
        x = self._divide(x, x.ndim - 1)
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + _EPSILON)
        for _ in range(steps):
            products = self._divide(x @ jnp.swapaxes(x, -1, -2), x.ndim - 2)
            polynomial = self._divide(self.muon_b * products + self.muon_c * products @ products, x.ndim - 2)
            x = self._divide(self.muon_a * x + polynomial @ x, x.ndim - 1)
        return x

    def _divide(self, x: jax.Array, dim: int) -> jax.Array:
        """Shards the leading dim, if there is one, and then a dim of the matrices by all axes that divide them."""
        if self.mesh is None or self.mesh.size == 1:
            return x
        spec: list[str | tuple[str, ...] | None] = [None] * x.ndim
        axes = [str(axis) for axis in self.mesh.axis_names]
        if x.ndim > 2:
            leading = self._dividing(x.shape[0], axes)
            spec[0] = leading
            axes = [axis for axis in axes if axis not in leading]
        spec[dim] = self._dividing(x.shape[dim], axes)
        return lax.with_sharding_constraint(x, sharding(self.mesh, spec))

    def _dividing(self, size: int, axes: Sequence[str]) -> tuple[str, ...]:
        """Returns those axes, in order, that divide a dim of a size together."""
        assert self.mesh is not None
        chosen: list[str] = []
        parts = 1
        for axis in axes:
            if size % (parts * self.mesh.shape[axis]) == 0:
                chosen.append(axis)
                parts *= self.mesh.shape[axis]
        return tuple(chosen)
