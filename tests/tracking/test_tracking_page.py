"""What a run's page says: its description and the listed params."""

from typing import Any

from mlflow import MlflowClient

from runner.tracking.records import DESCRIPTION
from runner.train.record import listed_params


def test_a_description_is_written_once_so_a_persons_stays(opener: Any, uri: str) -> None:
    first = opener(uri, description="`python -m runner`", parent_run_id="7")
    tags = MlflowClient(uri).get_run(first.run_id).data.tags
    assert (tags[DESCRIPTION], tags["mlflow.parentRunId"]) == ("`python -m runner`", "7")
    MlflowClient(uri).set_tag(first.run_id, DESCRIPTION, "mine")
    first.finish("FINISHED")
    opener(uri, description="`python -m runner`", resume_run_id=first.run_id).finish("FINISHED")
    assert MlflowClient(uri).get_run(first.run_id).data.tags[DESCRIPTION] == "mine"


def test_listed_are_options_keys_that_matter_and_what_was_typed() -> None:
    content = {
        "dataset": {"batch_size": 64, "prefetch": 2, "shuffle": True},
        "mesh": {"axes": {"batch": 4, "model": 2}, "device": "cpu"},
        "model": {"_target_": "x", "hidden": [64]},
        "optimizer": {"name": "adam", "epsilon": 1e-7, "clip": {"norm": None}},
    }
    found = listed_params(
        content, {"model": "mlp", "mesh": "batch8", "tracking": "mlflow"}, ["optimizer.clip", "dataset"]
    )
    assert found == {
        "model": "mlp", "mesh": "batch=4 model=2", "dataset.batch_size": 64, "model.hidden": [64],
        "optimizer.clip.norm": None,
    }  # fmt: skip
