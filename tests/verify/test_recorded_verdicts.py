"""Verdicts that earlier releases recorded in tags and in jobs' folders are read in the present words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from mlflow.entities import Run, RunData, RunInfo, RunTag

from runner.compare.records import from_run
from runner.config import renamed
from runner.sweep.jobs import Job, Outcome
from runner.sweep.state import Sweep

WORDS = [
    ("proven", "verified"),
    ("not proven", "inconclusive"),
    ("differs", "mismatch"),
    ("verified", "verified"),
    ("inconclusive", "inconclusive"),
    ("mismatch", "mismatch"),
]


@pytest.mark.parametrize(("recorded", "present"), WORDS)
def test_a_recorded_verdict_is_read_in_the_present_words(recorded: str, present: str) -> None:
    assert renamed.verdict(recorded) == present


@pytest.mark.parametrize(("recorded", "present"), WORDS)
def test_the_record_of_an_mlflow_run_has_the_present_verdict(recorded: str, present: str) -> None:
    info = RunInfo("run", "0", "user", "FINISHED", 1, 2, "active")
    run = Run(info, RunData(tags=[RunTag("runner.verdict", recorded), RunTag("runner.mesh", "batch=8")]))
    assert from_run(run).tags == {"runner.verdict": present, "runner.mesh": "batch=8"}


@pytest.mark.parametrize(("recorded", "present"), WORDS)
def test_a_sweep_shows_the_present_verdict_of_a_job(tmp_path: Path, recorded: str, present: str) -> None:
    (tmp_path / "verify.json").write_text(json.dumps({"verdict": recorded}))
    job = Job(0, (), tmp_path)
    assert Sweep.result(cast("Sweep", None), job, Outcome("passed", 0, 1.0)) == present
