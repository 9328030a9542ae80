"""What a config differs from the defaults in is said as it would be typed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

from runner.config.convert import resolved
from runner.config.differences import differences
from runner.host.paths import conf_dir
from runner.plan.checks.run import convert


@pytest.fixture(autouse=True)
def _hydra() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        yield
    HydraConfig.instance().cfg = None


def differing(overrides: Sequence[str]) -> list[str]:
    composed = compose("config", list(overrides), return_hydra_config=True)
    composed.hydra.job.config_name = "config"
    HydraConfig.instance().set_config(composed)
    with open_dict(composed):
        del composed["hydra"]
    return differences(composed, resolved(convert(composed), composed))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], []),
        (["model=mlp", "mesh=batch8"], ["mesh=batch8"]),
        (["optimizer=sgd", "optimizer.learning_rate=0.01"], ["optimizer=sgd", "optimizer.learning_rate=0.01"]),
        (["trainer.epochs=3", "trainer.log_model=false"], ["trainer.log_model=false"]),
        (["trainer.steps=3"], ["trainer.steps=3"]),
        (["trainer.epochs=null", "trainer.steps=3"], ["trainer.epochs=null", "trainer.steps=3"]),
        (
            ["mesh=batch4_model2", "layout.rules=[{match: d1/kernel, spec: [null, model]}]"],
            ["mesh=batch4_model2", "layout.rules=[{match: d1/kernel, spec: [null, model]}]"],
        ),
        (
            ["task=several", "task.outputs={label: classification, age: {name: regression, weight: 2}}"],
            ["task=several", "task.outputs={label: classification, age: {name: regression, weight: 2}}"],
        ),
        (["~mesh.axes", "+mesh.axes={batch: 2, model: 2}"], ["mesh.axes.batch=2", "mesh.axes.model=2"]),
    ],
)
def test_what_is_as_by_default_is_left_out_also_where_it_was_typed(typed: list[str], said: list[str]) -> None:
    assert differing(typed) == said


def test_what_a_preset_sets_is_said_beside_its_name() -> None:
    found = differing(["experiment=keras_tutorial"])
    assert found[0] == "experiment=keras_tutorial"
    assert {"mesh=batch8", "model=mlp_explicit", "tracking.experiment=keras_tutorial"} <= set(found)
