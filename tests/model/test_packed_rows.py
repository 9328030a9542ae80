"""Packed rows are the examples that padded rows of their own are.

`tests/run/test_language_model.py` compares meshes with one device, on rows of several documents.
"""

import pytest

from tests import forks
from tests.docs import pages

pytestmark = pytest.mark.nightly

PACK = pages.files("text")["packed_rows.py"]
PROGRAM = """
import json, sys
from importlib import import_module
import numpy as np
from runner.data.base import ArraySpec
from runner.model import gpt
from runner.task.base import OutputSpec

keras, program = import_module(sys.argv[1]), {}
exec(sys.argv[2], program)
T, V = 16, 64
rng = np.random.default_rng(3)
sequences = [rng.integers(0, V, rng.integers(2, T + 1)) for _ in range(48)]
packed, padded = program["pack"](sequences, T), np.zeros((48, T), np.int32)
for row, sequence in enumerate(sequences):
    padded[row, : len(sequence)] = sequence

def made(*names, **options):
    inputs = {name: ArraySpec((T,), "int32") for name in names}
    sizes = {"dim": 32, "depth": 2, "heads": 4, "feedforward": 64, "fused_head": False}
    return gpt.build(keras, inputs, OutputSpec(V), **sizes, **options)

llama = {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False, "key_value_heads": 2}
kinds = {"gpt2": {}, "llama": llama, "scan": {"scan": True, "remat": "full"}}
if sys.argv[1] == "tf_keras":
    del kinds["scan"]
found = {}
for kind, options in kinds.items():
    models = [made("tokens", **options), made("tokens", "segments", "positions", **options)]
    weights = [rng.normal(0, 0.3, weight.shape) for weight in models[0].get_weights()]
    for model in models:
        model.set_weights(weights)
    alone = np.asarray(models[0](padded))
    together = np.asarray(models[1]({name: packed[name] for name in ("tokens", "segments", "positions")}))
    places = {}
    for row, segments in enumerate(packed["segments"]):
        for number in range(1, segments.max() + 1):
            columns = np.flatnonzero(segments == number)
            places[tuple(packed["tokens"][row, columns])] = row, columns
    apart = []
    for own, sequence in zip(alone, sequences):
        row, columns = places[tuple(sequence)]
        apart.append(np.abs(together[row, columns] - own[: len(sequence)]).max())
        assert packed["label"][row, columns[:-1]].tolist() == sequence[1:].tolist()
        assert packed["label_weight"][row, columns].tolist() == [1] * (len(sequence) - 1) + [0]
    found[kind] = float(max(apart) / np.abs(alone).max())
print(json.dumps(found))
"""


@pytest.mark.parametrize("keras", forks.OF_KERAS)
def test_a_token_has_the_logits_that_it_has_in_a_row_of_its_example_alone(keras: str) -> None:
    variables = {"KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    found = forks.answer("-c", PROGRAM, keras, PACK, library=forks.OF_KERAS[keras], **variables)
    # Float32 sums of the same terms in another order.
    assert max(found.values()) < 1e-5, found
