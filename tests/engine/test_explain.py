"""DTensor's compile errors become one line with the layer, the operation and what works instead."""

from __future__ import annotations

import pytest

from runner.engine.dtensor.explain import compile_error, is_compile_error, trace_error

NO_RULE = (
    "/x.py:1:1: error: 'tf.FusedBatchNormV3' op does not implement layout propagation. Please file a request to "
    "TF DTensor. (component id: 833864)\n note: called from"
)
HALO = (
    "/x.py:1:1: error: Halo exchange is only supported on TPU\ntensorflow/dtensor/mlir/spmd_expander.cc:206 :: \n"
    'note: see current operation: %7 = "tf.Conv2D"(%1, %2) <{data_format = "NHWC"}>'
)


def test_an_operation_without_a_rule_names_layer_and_alternative() -> None:
    operations = [("MatMul", "loop/m/d1/MatMul"), ("FusedBatchNormV3", "loop/m/norm/FusedBatchNormV3")]
    text = str(compile_error(NO_RULE, operations, ["d1", "norm", "m"]))
    assert "operation FusedBatchNormV3 in layer norm" in text
    assert "no rule for layouts" in text
    assert text.endswith("set engine=jax")
    assert "\n" not in text


def test_a_backward_operation_is_found_under_its_layer() -> None:
    operations = [("Conv2DBackpropInput", "gradient_tape/loop/m/stage_0.conv/Conv2D/Conv2DBackpropInput")]
    text = str(compile_error(HALO.replace("tf.Conv2D", "tf.Conv2DBackpropInput"), operations, ["stage_0.conv", "m"]))
    assert "Conv2DBackpropInput in layer stage_0.conv" in text
    assert "Halo exchange is only supported on TPU" in text


def test_an_unknown_operation_still_has_a_fix() -> None:
    text = str(compile_error("error: something 'tf.Frobnicate' op went wrong", [], []))
    assert "Frobnicate" in text
    assert "mesh=single" in text


@pytest.mark.parametrize(("text", "expected"), [(NO_RULE, True), (HALO, True), ("NaN in gradients", False)])
def test_compile_errors_are_told_from_errors_of_the_run(text: str, expected: bool) -> None:
    assert is_compile_error(text) is expected


def test_what_a_layer_raises_becomes_one_line() -> None:
    text = str(trace_error(ValueError("two\nlines"), "mine.build"))
    assert text.endswith("model._target_=mine.build: a training step of the model raised ValueError: two lines")
