"""DTensor's compile errors become one line with the operation and what works instead."""

from __future__ import annotations

import pytest

from runner.engine.dtensor.guards import compile_error, is_compile_error

NO_RULE = (
    "/x.py:1:1: error: 'tf.FusedBatchNormV3' op does not implement layout propagation. Please file a request to "
    "TF DTensor. (component id: 833864)\n note: called from"
)
HALO = (
    "/x.py:1:1: error: Halo exchange is only supported on TPU\ntensorflow/dtensor/mlir/spmd_expander.cc:206 :: \n"
    'note: see current operation: %7 = "tf.Conv2D"(%1, %2) <{data_format = "NHWC"}>'
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NO_RULE, "operation FusedBatchNormV3 as it is sharded ('tf.FusedBatchNormV3' op does not implement layout"),
        (HALO, "operation Conv2D as it is sharded (Halo exchange is only supported on TPU)"),
        ("error: something 'tf.Frobnicate' op went wrong", "operation Frobnicate"),
    ],
)
def test_an_error_names_the_operation_and_an_alternative_in_one_line(error: str, said: str) -> None:
    text = str(compile_error(error))
    assert said in text
    assert text.endswith("set engine=jax")
    assert "\n" not in text


@pytest.mark.parametrize(("text", "expected"), [(NO_RULE, True), (HALO, True), ("NaN in gradients", False)])
def test_compile_errors_are_told_from_errors_of_the_run(text: str, expected: bool) -> None:
    assert is_compile_error(text) is expected
