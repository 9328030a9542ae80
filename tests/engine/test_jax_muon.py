"""Muon on a mesh divides the work. `tests/optim/test_keras_classes.py` compares its numbers with Keras's."""

import pytest

from tests.engine.jax_runs import answer

PROGRAM = """
import json
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 8)
from runner.engine.jax.updates import DividedMuon

found = []
for count in (1, 8):
    own = DividedMuon(learning_rate=0.01)
    own.mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), ("batch",))
    work = jax.jit(lambda value: own.zeropower_via_newtonschulz5(value, 5))
    found.append(work.lower(np.ones((64, 128), np.float32)).compile().cost_analysis()["flops"])
print(json.dumps(found))
"""


@pytest.mark.nightly
def test_eight_devices_divide_the_products() -> None:
    one, eight = answer(PROGRAM)
    assert eight < one / 6
