"""Orthogonalizes matrices by Keras's Muon and by ours on meshes; prints the largest differences as JSON."""

from __future__ import annotations

import json

import jax
import numpy as np

# Before a device is made.
jax.config.update("jax_num_cpu_devices", 8)

import keras  # noqa: E402

from runner.engine.jax.muon import DividedMuon  # noqa: E402

SHAPES = ((16, 8), (8, 16), (12, 40), (7, 5), (10, 256), (4, 24, 8), (3, 8, 24))
MESHES = {"one": ((1,), ("batch",)), "batch8": ((8,), ("batch",)), "batch4_model2": ((4, 2), ("batch", "model"))}


def main() -> None:
    """Prints {mesh: {"difference": the largest of all shapes, "flops": of one device}}."""
    stock = keras.optimizers.Muon(learning_rate=0.01)
    results = {}
    for name, (sizes, names) in MESHES.items():
        devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
        mesh = jax.sharding.Mesh(devices, names)
        own = DividedMuon(learning_rate=0.01)
        own.mesh = mesh
        difference = 0.0
        for shape in SHAPES:
            x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            ours = jax.jit(lambda value, own=own: own.zeropower_via_newtonschulz5(value, 5))(x)
            theirs = stock.zeropower_via_newtonschulz5(x, 5)
            difference = max(difference, float(np.abs(np.asarray(ours) - np.asarray(theirs)).max()))
        work = jax.jit(lambda value, own=own: own.zeropower_via_newtonschulz5(value, 5))
        costs = work.lower(np.ones((64, 128), np.float32)).compile().cost_analysis()
        results[name] = {"difference": difference, "flops": costs["flops"]}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
