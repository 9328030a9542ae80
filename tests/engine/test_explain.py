"""DTensor's compile errors become one line with the operation and what works instead."""

import json

from tests import forks

NO_RULE = (
    "/x.py:1:1: error: 'tf.FusedBatchNormV3' op does not implement layout propagation. Please file a request to "
    "TF DTensor. (component id: 833864)\n note: called from"
)
HALO = (
    "/x.py:1:1: error: Halo exchange is only supported on TPU\ntensorflow/dtensor/mlir/spmd_expander.cc:206 :: \n"
    'note: see current operation: %7 = "tf.Conv2D"(%1, %2) <{data_format = "NHWC"}>'
)
SAID = {
    NO_RULE: "operation FusedBatchNormV3 as it is sharded ('tf.FusedBatchNormV3' op does not implement layout",
    HALO: "operation Conv2D as it is sharded (Halo exchange is only supported on TPU)",
    "error: something 'tf.Frobnicate' op went wrong": "operation Frobnicate",
}
CODE = """
import json, sys
from runner.engine.dtensor.guards import compile_error, is_compile_error
texts = json.loads(sys.argv[1])
print(json.dumps([[str(compile_error(text)), is_compile_error(text)] for text in texts]))
"""


def test_an_error_names_the_operation_and_an_alternative_in_one_line() -> None:
    texts = json.dumps([*SAID, "NaN in gradients"])
    *found, (_, of_the_run) = forks.answer("-c", CODE, texts, library="tensorflow")
    for said, (text, _) in zip(SAID.values(), found, strict=True):
        assert said in text
        assert text.endswith("set engine=jax")
        assert "\n" not in text
    assert [is_one for _, is_one in found[:2]] == [True, True]
    assert not of_the_run
