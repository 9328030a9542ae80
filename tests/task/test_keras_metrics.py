"""Metrics of whole evaluations equal Keras's own metric classes, over padded batches of any size."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest

from runner.config.schema_keras_metrics import LEFT_OUT, OPTIONS
from runner.data.base import ArraySpec
from runner.task.keras_metrics import KINDS
from runner.task.registry import make_task
from tests import forks
from tests.task import cases, keras_metric_cases
from tests.task.keras_metrics_worker import CLASSES, IGNORED, classes, grids, several_labels, two_classes
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
        if "|" in key or key == "signatures":
            continue
        kind, name = key.split()
        # Keras adds up and divides in float32.
        assert found[kind][name] == pytest.approx(float(value), rel=1e-5), key


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch_size", [17, 1000])
def test_metrics_of_a_config_are_those_of_kerass_classes(of_keras: cases.Arrays, name: str, batch_size: int) -> None:
    case = CASES[name]
    config = cases.config(case.task, example_weight=case.example_weight, metrics=list(case.metrics), **case.options)
    task = make_task(config, case.specs)
    found = evaluated(task, case.arrays, case.outputs, batch_size).metrics
    compared = {key.partition("|")[2]: value for key, value in of_keras.items() if key.startswith(f"{name}|")}
    assert len(compared) == len(case.metrics)
    for metric, value in compared.items():
        if value.shape:
            values = [found[f"{metric}_0.3"], found[f"{metric}_0.7"]]
        else:
            values = [found[metric]]
        # Keras adds up and divides in float32.
        np.testing.assert_allclose(values, np.atleast_1d(value), rtol=1e-5, err_msg=metric)


@pytest.mark.nightly
def test_options_have_the_names_and_defaults_of_kerass_arguments(of_keras: cases.Arrays) -> None:
    of_classes = json.loads(str(of_keras["signatures"]))
    # A mean over the classes replaces Keras's one number per class.
    ours = {"average": "macro"}
    for kind, options in OPTIONS.items():
        for spec in fields(options):
            if spec.name in ("name", "weighted"):
                continue
            default = spec.default if spec.default_factory is MISSING else spec.default_factory()
            default = "required" if default is MISSING else default
            if spec.name == "class_id" and spec.name not in of_classes[kind]:
                continue  # Keras counts true positives and the like over all labels only
            theirs = of_classes[kind][spec.name]
            assert default == (ours[spec.name] if theirs is None and spec.name in ours else theirs), (kind, spec.name)


@pytest.mark.nightly
def test_every_argument_of_kerass_classes_is_an_option_or_left_out_with_a_reason(of_keras: cases.Arrays) -> None:
    of_classes = json.loads(str(of_keras["signatures"]))
    left_out = set()
    for kind, options in OPTIONS.items():
        names = {spec.name for spec in fields(options)}
        others = set(of_classes[kind]) - names - {"self"}
        assert others <= set(LEFT_OUT), kind
        left_out |= others
    assert left_out == set(LEFT_OUT)


def test_every_metric_has_options_and_is_compared_with_keras() -> None:
    assert sorted(KINDS) == sorted(OPTIONS)
    compared = {kind for case in CASES.values() for kind, _ in case.listed()}
    assert compared == set(KINDS)
