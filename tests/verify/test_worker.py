"""What a side of a verification sets before its library is imported."""

import os
from unittest import mock

import pytest

from runner.config.schema import MeshConfig
from runner.verify.worker import compute_exactly

VARIABLE = "JAX_DEFAULT_MATMUL_PRECISION"


@pytest.mark.parametrize(
    ("device", "before", "after"),
    [("gpu", {}, "highest"), ("tpu", {}, "highest"), ("cpu", {}, None), ("gpu", {VARIABLE: "tf32"}, "tf32")],
)
def test_accelerators_compute_float32_products_in_float32(
    device: str, before: dict[str, str], after: str | None
) -> None:
    with mock.patch.dict(os.environ, before, clear=True):
        compute_exactly(MeshConfig(axes={"batch": 1}, device=device))
        assert os.environ.get(VARIABLE) == after
