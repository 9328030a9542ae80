"""What a run's page says: description, listed params and tags."""

from __future__ import annotations

from typing import Any

import pytest
from mlflow import MlflowClient

from runner.tracking import page
from runner.tracking.page import Page, merged
from runner.tracking.tags import tag_key, tags_of
from runner.train.record import listed_params


def _note(uri: str, run_id: str) -> str:
    return str(MlflowClient(uri).get_run(run_id).data.tags[page.TAG])


def test_a_page_says_the_command_the_result_and_how_it_ended() -> None:
    one = Page(command="python -m runner mesh=batch8", facts={"mesh": "batch=8 on 8 virtual CPU devices"})
    one.log({"train/loss": 3.0, "eval/loss": 0.25, "eval/accuracy": 0.91})
    one.tag({"runner.ended": "trained for 2 epochs", "runner.checkpoints": "/x/ck"})
    told = one.markdown("FINISHED")
    assert told.startswith("**Finished**: trained for 2 epochs\n")
    assert "| command | `python -m runner mesh=batch8` |" in told
    assert told.split("\n\n")[1:3] == [
        "result: eval/accuracy **0.91**, eval/loss **0.25**",
        "mesh: batch=8 on 8 virtual CPU devices",
    ]
    assert "| checkpoints | `/x/ck` |" in told


def test_a_run_that_failed_has_a_result_so_far_and_its_reason_is_no_markdown() -> None:
    one = Page(results={"eval/loss": 0.5}, ended="shape [2, *] of <a|b>\nis wrong")
    told = one.markdown("FAILED")
    assert told.splitlines()[0] == r"**Failed**: shape \[2, \*\] of \<a\|b\> is wrong"
    assert told.split("\n\n")[1] == "result so far: eval/loss **0.5**\n"


def test_what_a_person_wrote_below_the_line_or_in_place_of_ours_stays() -> None:
    first = merged("ours", None)
    assert merged("new", first) == first.replace("ours", "new")
    assert merged("new", first + "seed was wrong") == merged("new", None) + "seed was wrong"
    assert merged("new", "all mine") == "all mine"


def test_the_description_follows_the_run_from_its_start_to_its_end(opener: Any, uri: str) -> None:
    tracker = opener(uri, params={"a": 1})
    tracker.page.command = "python -m runner"
    tracker.show_page()
    assert tracker.flush(20)
    assert _note(uri, tracker.run_id).startswith("**Running**\n")
    tracker.log_metrics(3, {"eval/loss": 0.5})
    tracker.set_tags({"runner.ended": "ended by signal 15"})
    tracker.finish("KILLED")
    told = _note(uri, tracker.run_id)
    assert told.startswith(r"**Killed**: ended by signal 15")
    assert "eval/loss **0.5**" in told


@pytest.mark.parametrize("key", ["runner.pid", "runner.boot", "runner.sweep.job", "varied.dataset.batch_size"])
def test_bookkeeping_is_stored_where_the_page_lists_nothing_and_read_by_its_own_name(key: str) -> None:
    assert tag_key(key) == f"mlflow.{key}"
    assert tags_of({tag_key(key): "x"}) == {key: "x"}


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
