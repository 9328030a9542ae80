"""The random numbers of the two frameworks are one sequence."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np, tensorflow as tf
from runner.engine.jax.layers.philox import uniform
for shape, seed in [((5,), (0, 0)), ((64, 257), (2**31 - 1, 99999)), ((3, 1, 1, 5), (7, 2))]:
    expected = tf.random.stateless_uniform(shape, seed, alg="philox").numpy()
    print(np.array_equal(expected, np.asarray(uniform(shape, seed))))
drawn = np.asarray(uniform((100, 1000), (1, 2)))
print(abs(drawn.mean() - 0.5) < 0.005, drawn.min() >= 0, drawn.max() < 1, len(np.unique(drawn)) > 99000)
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_jax_draws_the_numbers_that_tensorflow_draws() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 7
