import math
import shutil
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.tracking import RunSpec, Tracker, attach, open_tracker, run_file, send, store
from runner.tracking import writer as writing
from runner.tracking.location import default_uri
from tests.stores import store_in


def _client(uri):
    return MlflowClient(tracking_uri=uri)


@pytest.fixture
def sync(uri, tmp_path):
    """Sends what a run could not send."""
    return lambda tracker: send.sync(
        store.open_store(uri, "tests"), run_file.path_of(tmp_path / "run", tracker.run_id), print
    )


def test_params_metrics_tags_and_artifacts_come_back(opener, uri, tmp_path):
    page = tmp_path / "config.yaml"
    page.write_text("a: 1\n")
    tracker = opener(uri, params={f"p{i}": i for i in range(250)} | {"rules[0]": None})
    tracker.log_metrics(10, {"train/loss": 0.5, "train/accuracy": 0.25})
    tracker.log_metrics(20, {"train/loss": 0.125})
    tracker.set_tags({"note": "x"})
    tracker.log_artifact(page)
    tracker.log_artifact(page, "folder")
    tracker.finish("FINISHED")

    run = _client(uri).get_run(tracker.run_id)
    assert run.data.params == {f"p{i}": str(i) for i in range(250)} | {"rules_0_": "null"}
    history = _client(uri).get_metric_history(tracker.run_id, "train/loss")
    assert [(one.step, one.value) for one in history] == [(10, 0.5), (20, 0.125)]
    assert abs(history[0].timestamp / 1000 - time.time()) < 600
    assert run.data.tags["note"] == "x"
    assert run.data.tags["purpose"] == "test"
    paths = [one.path for folder in (None, "folder") for one in _client(uri).list_artifacts(tracker.run_id, folder)]
    assert sorted(paths) == ["config.yaml", "folder", "folder/config.yaml"]
    assert (tmp_path / "mlartifacts" / tracker.run_id / "artifacts" / "config.yaml").read_text() == "a: 1\n"


def test_what_is_added_to_a_run_that_has_ended_is_stored_at_once(opener, uri):
    ended = opener(uri)
    ended.log_metrics(1, {"loss": 1.0})
    ended.finish("FAILED")
    added = attach(TrackingConfig(uri=uri), ended.run_id)
    # More than MLflow takes in one request.
    many = {f"m{index}": float(index) for index in range(1100)}
    added.log_metrics(2, many)
    added.log_metrics(3, {})
    added.set_tags({"note": "x"})
    run = _client(uri).get_run(ended.run_id)
    assert run.data.metrics == {"loss": 1.0} | many
    assert run.data.tags["note"] == "x"
    assert (run.info.status, added.run_id) == ("FAILED", ended.run_id)
    _client(uri).log_metric(ended.run_id, "loss", 0.5, step=4)
    assert [point.value for point in _client(uri).get_metric_history(ended.run_id, "loss")] == [1.0, 0.5]


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_the_status_is_the_one_that_the_run_ended_with(opener, uri, status, rows):
    tracker = opener(uri)
    tracker.log_metrics(1, {"loss": 1.0})
    assert _client(uri).get_run(tracker.run_id).info.status == "RUNNING"
    tracker.finish(status)
    tracker.finish("FINISHED")  # says nothing new
    info = _client(uri).get_run(tracker.run_id).info
    assert info.status == status
    assert info.end_time >= info.start_time
    assert rows("loss") == [(1, 1.0)]


def test_a_batch_that_was_stored_although_it_raised_is_not_stored_twice(opener, uri, rows, monkeypatch):
    real, failures = MlflowClient.log_batch, iter([True, True])

    def stores_and_raises(self, *args, **kwargs):
        real(self, *args, **kwargs)
        if next(failures, False):
            raise MlflowException("the answer was lost")

    tracker = opener(uri)
    monkeypatch.setattr(MlflowClient, "log_batch", stores_and_raises)
    for step in range(20):
        tracker.log_metrics(step, {"loss": math.nan if step == 7 else 1.0})
    tracker.finish("FINISHED")
    assert [step for step, _ in rows("loss")] == list(range(20))


def test_nan_stays_and_infinity_becomes_nan(opener, uri):
    tracker = opener(uri)
    tracker.log_metrics(1, {"a": math.nan, "b": math.inf})
    tracker.finish("FINISHED")
    stored = _client(uri).get_run(tracker.run_id).data.metrics
    assert math.isnan(stored["a"])
    assert math.isnan(stored["b"])


def test_a_resumed_run_goes_on_and_keeps_its_first_params(opener, uri, rows):
    first = opener(uri, params={"a": 1, "b": 2})
    first.log_metrics(1, {"loss": 1.0})
    first.finish("KILLED")
    second = opener(uri, params={"a": 1, "b": 3, "c": 4}, resume_run_id=first.run_id)
    assert second.run_id == first.run_id
    assert (first.run_name, second.run_name) == ("a run", "")
    assert _client(uri).get_run(first.run_id).info.status == "RUNNING"
    second.log_metrics(2, {"loss": 0.5})
    second.finish("FINISHED")
    run = _client(uri).get_run(first.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"a": "1", "b": "2"}
    assert (run.data.tags["resumed.b"], run.data.tags["resumed.c"]) == ("3", "4")
    assert rows("loss") == [(1, 1.0), (2, 0.5)]


def test_tags_of_a_resumed_run_say_which_params_differ_from_the_recorded_ones(opener, uri):
    first = opener(uri, params={"a": 1, "b": 2})
    first.finish("FINISHED")

    def tags_after(params, config=None):
        opener(uri, params=params, config=config, resume_run_id=first.run_id).finish("FINISHED")
        tags = _client(uri).get_run(first.run_id).data.tags
        return {key: value for key, value in tags.items() if key.startswith("resumed.")}

    assert tags_after({"a": 5, "b": 3}) == {"resumed.a": "5", "resumed.b": "3"}
    assert tags_after({"a": 1, "b": 3}) == {"resumed.b": "3"}
    # A param that is listed no more is compared too.
    assert tags_after({"a": 1}, {"a": 1, "b": 0, "c": 5}) == {"resumed.b": "0"}


def test_a_resumed_run_stays_in_its_experiment_and_says_so(opener, uri, capsys):
    first = opener(uri)
    first.finish("FINISHED")
    opener(uri, resume_run_id=first.run_id).finish("FINISHED")
    assert "tracking.experiment" not in capsys.readouterr().err
    opener(uri, resume_run_id=first.run_id, experiment="others").finish("FINISHED")
    said = f"tracking.experiment: run {first.run_id} stays in the experiment that it began in; MLflow can't move it"
    assert said in capsys.readouterr().err


def test_a_changed_run_name_renames_a_resumed_run_and_an_unchanged_one_does_not(opener, uri):
    first = opener(uri, params={"tracking.run_name": "old"}, run_name="old")
    first.finish("FINISHED")

    def name_after(name):
        params = {"tracking.run_name": name}
        opener(uri, params=params, run_name=name, resume_run_id=first.run_id).finish("FINISHED")
        return _client(uri).get_run(first.run_id).info.run_name

    assert name_after("new") == "new"
    _client(uri).update_run(first.run_id, name="by hand")
    assert name_after("new") == "by hand"


def test_resuming_a_run_that_is_not_there_is_one_line(opener, uri):
    with pytest.raises(TrackingError, match=r"run 123abc.*fix the cause") as error:
        opener(uri, resume_run_id="123abc")
    assert "\n" not in str(error.value)


def test_a_deleted_experiment_is_refused_with_the_mend(opener, uri):
    opener(uri).finish("FINISHED")
    identity = _client(uri).get_experiment_by_name("tests").experiment_id
    _client(uri).delete_experiment(identity)
    with pytest.raises(TrackingError, match=f"restore -x {identity}"):
        opener(uri)


def test_in_a_project_whose_path_has_special_characters_the_store_and_its_files_are_where_they_belong(
    opener, tmp_path, monkeypatch
):
    root = tmp_path / "a?b#c%41 d"
    (root / "outputs").mkdir(parents=True)
    store_in(root / "outputs")
    monkeypatch.chdir(root)
    page = root / "config.yaml"
    page.write_text("a: 1")
    uri = default_uri(root)
    tracker = opener(uri)
    tracker.log_metrics(1, {"loss": 1.0})
    tracker.log_artifact(page)
    assert tracker.finish("FINISHED")
    assert _client(uri).get_run(tracker.run_id).data.metrics == {"loss": 1.0}
    assert [info.path for info in _client(uri).list_artifacts(tracker.run_id)] == ["config.yaml"]
    assert [path.parent.parent.parent for path in root.rglob("mlartifacts/*/artifacts/*")] == [
        root / "outputs" / "mlartifacts"
    ]
    assert {path.name for path in tmp_path.iterdir()} == {root.name, "run"}


def test_a_run_deleted_in_the_middle_ends_with_its_points_in_a_file(opener, uri, unsent, sync, capsys):
    tracker = opener(uri)
    _client(uri).delete_run(tracker.run_id)
    tracker.log_metrics(1, {"loss": 1.0})
    assert not tracker.finish("FINISHED")
    assert f"`mlflow runs restore --run-id {tracker.run_id}`" in tracker.lost
    assert unsent(tracker) == ["point", "ending"]
    assert "python -m runner.runs sync" in capsys.readouterr().err
    assert any("python -m runner.runs sync" in line for line in tracker.describe())
    with pytest.raises(TrackingError, match="were rejected: "):
        sync(tracker)
    _client(uri).restore_run(tracker.run_id)
    sync(tracker)
    run = _client(uri).get_run(tracker.run_id)
    assert (run.data.metrics, run.info.status) == ({"loss": 1.0}, "FINISHED")
    assert unsent(tracker) is None


def store_slowly(monkeypatch, pause_s):
    """Lets the store take some time for each group of points."""
    real = MlflowClient.log_batch

    def log_batch(self, *args, **kwargs):
        time.sleep(pause_s)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)


def test_an_interrupted_run_does_not_wait_and_has_its_status_at_once(opener, uri, rows, sync, monkeypatch):
    tracker = opener(uri, finish_timeout_s=0.5)
    store_slowly(monkeypatch, 0.2)
    monkeypatch.setattr(writing, "POINTS_PER_CALL", 10)
    for step in range(200):
        tracker.log_metrics(step, {"loss": step / 8})
    begun = time.monotonic()
    assert tracker.finish("KILLED")
    assert time.monotonic() - begun < 3
    assert _client(uri).get_run(tracker.run_id).info.status == "KILLED"
    monkeypatch.undo()
    sync(tracker)
    assert rows("loss") == [(step, step / 8) for step in range(200)]
    assert _client(uri).get_run(tracker.run_id).info.status == "KILLED"


def test_an_artifact_that_is_not_there_costs_nothing_else(opener, uri):
    tracker = opener(uri)
    tracker.log_artifact(Path("no such file.png"))
    tracker.set_tags({"after": "it"})
    tracker.finish("FINISHED")
    run = _client(uri).get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["after"] == "it"


def test_a_moved_store_warns_until_its_old_place_is_a_link(opener, tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "mlartifacts").mkdir(parents=True)
    opener(f"sqlite:///{old / 'mlflow.db'}").finish("FINISHED")
    shutil.move(old, new)
    uri = f"sqlite:///{new / 'mlflow.db'}"
    for experiment, warns in (("tests", True), ("another", False)):
        store.open_store(uri, experiment)
        assert ("was the project moved or copied?" in capsys.readouterr().err) == warns
    old.symlink_to(new)
    store.open_store(uri, "tests")
    assert capsys.readouterr().err == ""


def test_none_records_nothing(tmp_path):
    tracker = open_tracker(TrackingConfig(writers=[]), RunSpec("x"), tmp_path)
    assert type(tracker) is Tracker
    tracker.log_metrics(1, {"loss": 1.0})
    tracker.finish("FINISHED")
    assert tracker.describe() == []
    assert list(tmp_path.iterdir()) == []


def test_dependencies_send_no_telemetry():
    import os

    from mlflow.telemetry.utils import is_telemetry_disabled

    assert is_telemetry_disabled()
    assert os.environ["DO_NOT_TRACK"] == "true"
