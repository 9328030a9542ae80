"""Verify passes for every kind of layout on every kind of mesh; what can't work is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.verify.table import SHORT, Row, verify

pytestmark = pytest.mark.slow

_SPLIT_FIVE = "layout.rules=[{match: d1/kernel, spec: [null, model]}]"
REFUSED = [
    (Row("mlp", "model8", "replicated", ("model.hidden=[100]", _SPLIT_FIVE)), ["d1/kernel", "model", "8", "100"]),
    (Row("mlp", "batch8", "megatron"), ["no axis 'model'", "mesh=batch4_model2"]),
    (Row("vit", "batch8", "spatial"), ["no axis 'height'", "mesh=batch2_height2"]),
    (
        Row("vit", "batch2_height2", "spatial", ("dataset.image_size=[27,27]", "model.patch=9")),
        ["layout.inputs.image", "height", "27"],
    ),
    (
        Row("vit", "model8", "replicated", ("layout.rules=[{match: '.*query/kernel', spec: [null, model, null]}]",)),
        ["attention/query/kernel", "model", "8", "dim 1"],
    ),
]


@pytest.mark.nightly
@pytest.mark.parametrize("row", SHORT, ids=lambda row: row.name[:60])
def test_the_mesh_computes_what_one_device_computes(row: Row, tmp_path: Path) -> None:
    done = verify(row, tmp_path, 3)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "run" / "verify.json").read_text())
    assert report["verified"]
    # Losses and gradients of the first step are the sharpest part, whatever the network does to rounding later.
    assert {check["kind"] for check in report["checks"]} >= {"initial", "loss", "gradient", "parameter", "slot"}


@pytest.mark.parametrize(("row", "shown"), REFUSED, ids=[row.name[:60] for row, _ in REFUSED])
def test_what_can_not_work_is_refused_with_its_reason(row: Row, shown: list[str], tmp_path: Path) -> None:
    done = verify(row, tmp_path, 3)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for part in shown:
        assert part in done.stderr
