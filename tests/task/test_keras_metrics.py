"""Metrics of whole evaluations equal Keras's own metric classes, over padded batches of any size."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.data.base import ArraySpec
from runner.task.keras_metrics import KINDS
from runner.task.registry import make_task
from tests import forks
from tests.task import cases, keras_metric_cases
from tests.task.keras_metrics_worker import BATCH_SIZES, CLASSES, IGNORED, classes, grids, several_labels, two_classes
from tests.task.test_metrics import SPECS, evaluated

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow
CASES = keras_metric_cases.make()


@pytest.fixture(scope="module")
def of_keras(tmp_path_factory: pytest.TempPathFactory) -> cases.Arrays:
    out = tmp_path_factory.mktemp("keras") / "metrics.npz"
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.task.keras_metrics_worker", str(out)]
    done = forks.run(command, library="jax", cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


@pytest.mark.nightly
@pytest.mark.parametrize("batch_size", [64, 1000])
def test_metrics_are_those_of_kerass_classes(of_keras: cases.Arrays, batch_size: int) -> None:
    labels, logits = two_classes()
    specs = SPECS | {"label": ArraySpec((), "int32")}
    options = {"threshold": 0.4, "thresholds": [0.8], "auc_thresholds": 50}
    binary = make_task(cases.config("binary", **options), specs)
    masks, mask_logits = grids()
    mask_specs = SPECS | {"label": ArraySpec((3, 5), "int32")}
    positions = make_task(cases.config("positions", classes=CLASSES, ignore_index=IGNORED), mask_specs)
    several, several_logits = several_labels()
    multilabel = make_task(cases.config("multilabel", **options), SPECS | {"label": ArraySpec((4,), "int32")})
    one_of, one_of_logits = classes()
    names = tuple("abcdefgh")
    top = make_task(cases.config("classification", top_k=3), SPECS | {"label": ArraySpec((), "int32", (), names)})
    found = {
        "multilabel": evaluated(multilabel, {"label": several}, several_logits, batch_size).metrics,
        "classification": evaluated(top, {"label": one_of}, one_of_logits, batch_size).metrics,
        "binary": evaluated(binary, {"label": labels}, logits, batch_size).metrics,
        "positions": evaluated(positions, {"label": masks}, mask_logits, batch_size).metrics,
    }
    for key, value in of_keras.items():
        if "|" in key:
            continue
        kind, name = key.split()
        # Keras adds up and divides in float32.
        assert found[kind][name] == pytest.approx(float(value), rel=1e-5), key


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_metrics_over_padded_batches_are_those_of_kerass_classes_over_all(
    of_keras: cases.Arrays, name: str, batch_size: int
) -> None:
    for kind, content in CASES[name].listed():
        metric = f"{name}|{content.get('name', KINDS[kind].name)}"
        # Keras adds up and divides in float32.
        np.testing.assert_allclose(of_keras[f"{metric}|{batch_size}"], of_keras[metric], rtol=1e-5, err_msg=metric)


def test_every_metric_is_compared_with_keras() -> None:
    assert {kind for case in CASES.values() for kind, _ in case.listed()} == set(KINDS)
