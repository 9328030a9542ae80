"""A run that is resumed from before its end: its old checkpoints stay until they are replaced, and never mix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.training.checkpoint import index, manifest, storage
from runner.training.checkpoint.index import CheckpointIndex
from runner.training.checkpoint.reading import Checkpoint
from tests.training.checkpoint.numpy_engine import NumpyEngine
from tests.training.checkpoint.test_resumed_loop import Killed, Store, make_config, train
from tests.training.checkpoint.test_storage import content


def live(folder: Path) -> list[int]:
    return index.current_steps(storage.lineages(folder))


def at(folder: Path, step: int) -> Checkpoint:
    return Checkpoint(storage.place(folder, step))


def die_after(folder: Path, start: int, points: int, every: int = 5) -> None:
    """Resumes from a step at another learning rate, and dies after so many points."""
    store = Store(dies_at=points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumpyEngine.__init__, "__defaults__", (0.05, None))
        with pytest.raises(Killed):
            train(make_config(every, keep=99, window=1), store, folder, at(folder, start))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train(make_config(5, keep=99), Store(), tmp_path)
    assert {5, 10, 15, 20, 24} <= set(storage.steps(tmp_path))
    return tmp_path


def test_a_crash_before_the_first_save_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    die_after(folder, 10, 0)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert live(folder)[-1] == 24


def test_a_crash_after_the_first_save_keeps_both_histories_and_continues_the_new_one(folder: Path) -> None:
    old, noted = {step: at(folder, step)["d/kernel"] for step in storage.steps(folder)}, index.read_best(folder)
    die_after(folder, 10, 30)  # in step 18 or so, saved at 15
    assert live(folder)[-1] < 20
    assert not np.array_equal(at(folder, live(folder)[-1])["d/kernel"], old.get(live(folder)[-1]))
    for step in (20, 24):
        np.testing.assert_array_equal(at(folder, step)["d/kernel"], old[step])
    assert index.read_best(folder) == noted or index.read_best(folder)["step"] in live(folder)  # type: ignore[index]
    assert index.superseded_steps(folder, index.resumed_lineage(storage.lineages(folder), live(folder)[-1])) == [
        step for step in storage.steps(folder) if step not in live(folder)
    ]


def test_the_best_checkpoint_stays_until_there_is_a_new_best(folder: Path) -> None:
    index.write_best(
        folder, {"metric": "train/loss", "value": at(folder, 20).about["metrics"]["train/loss"], "step": 20}
    )
    place = CheckpointIndex(folder, 10)
    assert place.best() is None, "it is of the other history"
    for step in (15, 22):
        place.write(content_of(place, step), None)
        place.remove_old(99, step)
    assert index.read_best(folder) is not None
    assert 20 in storage.steps(folder)
    place.write(content_of(place, 23), {"metric": "eval/loss", "value": 0.1, "step": 23})
    place.remove_old(99, 23)
    assert 20 not in storage.steps(folder)
    assert place.best() == {"metric": "eval/loss", "value": 0.1, "step": 23}
    assert 24 in storage.steps(folder), "nothing has come as far yet"


def content_of(place: CheckpointIndex, step: int) -> storage.Content:
    made = content(step)
    return storage.Content(step, made.shards, made.history, made.about, place.lineage)


def test_a_best_checkpoint_that_another_history_overwrites_is_not_the_best_any_more(folder: Path) -> None:
    index.write_best(
        folder, {"metric": "train/loss", "value": at(folder, 20).about["metrics"]["train/loss"], "step": 20}
    )
    place = CheckpointIndex(folder, 10)
    place.write(content_of(place, 20), None)
    assert index.read_best(folder) is None


def test_a_damaged_checkpoint_after_the_resumed_one_is_set_aside_and_not_deleted(folder: Path) -> None:
    manifest = storage.place(folder, 24) / "checkpoint.json"
    manifest.write_text("{")
    assert live(folder)[-1] == 24, "no one knows yet what it is"
    train(make_config(5, keep=99), Store(), folder, at(folder, 20))
    assert live(folder)[-1] == 24
    assert at(folder, 24).step == 24
    assert (folder / "aside-step-000000024" / "checkpoint.json").read_text() == "{"


def test_resuming_from_the_old_history_makes_it_current(folder: Path) -> None:
    die_after(folder, 10, 30)
    assert 20 not in live(folder)
    place = CheckpointIndex(folder, 20)
    place.write(content_of(place, 21), None)
    assert live(folder)[-2:] == [20, 21]
    assert at(folder, 15).about["went_back"] == [[1, 10]]
    assert 15 not in live(folder), "it is of the history that was left"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=5))
def test_the_current_checkpoints_always_form_one_history(runs: list[tuple[int, int]]) -> None:
    """Each run goes on from any checkpoint there is and saves some more; what each was made of is kept beside."""
    found: dict[int, manifest.Lineage] = {0: ()}
    made: dict[int, tuple[tuple[int, int], ...]] = {0: ((0, 0),)}  # by step: (step, run) of its past and of itself
    for run, (chosen, saves) in enumerate(runs):
        start = sorted(found)[chosen % len(found)]
        own, past = index.resumed_lineage(found, start), made[start]
        for step in range(start + 1, start + 1 + saves):
            past = (*past, (step, run))
            found[step], made[step] = own, past
        assert index.current_steps(found)[-1] == start + saves
        there = {(step, made[step][-1][1]) for step in found}  # others have been replaced since
        assert {(step, made[step][-1][1]) for step in index.current_steps(found)} == set(past) & there


def test_a_folder_with_only_the_name_of_a_checkpoint_does_not_displace_a_valid_one(folder: Path) -> None:
    storage.place(folder, 999).mkdir()
    genuine = storage.steps(folder)[:-1]
    storage.place(folder, 5).rename(folder / "swap")
    storage.place(folder, 10).rename(storage.place(folder, 5))
    (folder / "swap").rename(storage.place(folder, 10))
    place = CheckpointIndex(folder, 24)
    assert not {5, 10, 999} & place.steps
    said = place.remove_old(1, 24)
    assert {999, 5, 10, 24} <= set(storage.steps(folder))
    assert said == []
    assert set(storage.steps(folder)) < {*genuine, 999}
