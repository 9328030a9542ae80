"""What a side of a verification sets before its library is imported."""

from __future__ import annotations

import os

import pytest

from runner.config.schema import MeshConfig
from runner.verify.worker import compute_exactly

VARIABLE = "JAX_DEFAULT_MATMUL_PRECISION"


@pytest.mark.parametrize(
    ("device", "before", "after"),
    [
        ("gpu", None, "highest"),
        ("tpu", None, "highest"),
        ("cpu", None, None),
        ("gpu", "tensorfloat32", "tensorfloat32"),
    ],
)
def test_accelerators_compute_float32_products_in_float32(
    monkeypatch: pytest.MonkeyPatch, device: str, before: str | None, after: str | None
) -> None:
    # Removed again after the test, whatever the function sets.
    monkeypatch.setenv(VARIABLE, "")
    if before is None:
        monkeypatch.delenv(VARIABLE)
    else:
        monkeypatch.setenv(VARIABLE, before)
    compute_exactly(MeshConfig(axes={"batch": 1}, device=device))
    assert os.environ.get(VARIABLE) == after
