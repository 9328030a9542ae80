from urllib.parse import parse_qsl

import pytest
import sqlalchemy
from mlflow import MlflowClient

from runner.config.schema import TrackingConfig
from runner.errors import ConfigError
from runner.tracking import location
from runner.tracking.location import absolute, default_uri, experiment_name, shown, sqlite_path, sqlite_uri, ui_lines


def test_the_default_is_an_absolute_sqlite_file_in_outputs(tmp_path):
    assert default_uri(tmp_path) == f"sqlite:///{tmp_path}/outputs/mlflow.db"


def test_the_environment_comes_before_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert default_uri(tmp_path) == "http://tracking:5000"


def test_a_relative_sqlite_file_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///a/../runs.db?timeout=9") == f"sqlite:///{tmp_path}/runs.db?timeout=9"
    assert sqlite_path("sqlite:///runs.db") == tmp_path / "runs.db"


SPECIAL = [
    "a?b",
    "a#b",
    "a%b",
    "a%41",
    "a%3Fb",
    "a b",
    "a?key=1",
    "a#token=b",
    "x;key=y&z",
    "***",
    "é?",
    "a:b@c",
    "a?b#c%d e",
]


@pytest.mark.parametrize("name", SPECIAL)
def test_the_path_of_a_project_is_the_path_of_its_store(tmp_path, name):
    uri = default_uri(tmp_path / name)
    assert sqlite_path(uri) == tmp_path / name / "outputs" / "mlflow.db"
    assert absolute(uri) == uri
    assert shown(uri) == uri
    assert sqlite_path(absolute(f"{uri}{'&' if '?' in uri else '?'}timeout=9")) == sqlite_path(uri)


@pytest.mark.parametrize("name", SPECIAL)
def test_sqlalchemy_opens_the_path_that_we_mean(tmp_path, name):
    path = tmp_path / name / "runs.db"
    path.parent.mkdir()
    engine = sqlalchemy.create_engine(sqlite_uri(path))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE t (a INTEGER)"))
    engine.dispose()
    assert [place for place in tmp_path.rglob("*") if place.is_file()] == [path]


@pytest.mark.parametrize("uri", ["http://h:1", "postgresql://u:p@h/db", "databricks", "sqlite:///:memory:"])
def test_other_uris_stay_as_they_are(uri):
    assert absolute(uri) == uri


def test_the_printed_command_serves_the_store(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    serve, page, _, charts = ui_lines("sqlite:////tmp/x.db", "1", "abc")
    assert serve.endswith("runner ui uri=sqlite:////tmp/x.db")
    assert page.startswith("run: http://127.0.0.1:5000/#/")
    assert charts.endswith("&compareRunsMode=CHART&viewStateShareKey=runner")
    assert ui_lines(default_uri(tmp_path), "1", "abc")[0].endswith("runner ui")


def test_the_links_of_a_sweep_are_to_its_jobs_in_the_order_of_its_metric():
    page, jobs, charts = ui_lines("http://server:5000/", "1", "abc", metric="eval/accuracy")
    assert page == "sweep: http://server:5000/#/experiments/1/runs/abc?workflowType=machine_learning"
    query = dict(parse_qsl(jobs.partition("?")[2]))
    assert query["searchFilter"] == "tags.mlflow.parentRunId = 'abc'"
    # Sorted by the time of creation, MLflow 3.17 shows the sweep alone, collapsed.
    assert (query["orderByKey"], query["orderByAsc"]) == ("metrics.`eval/accuracy`", "false")
    assert charts == f"charts: {jobs.removeprefix('jobs: ')}&compareRunsMode=CHART"


def test_mlflows_variables_count_where_the_config_has_no_value(opener, uri, monkeypatch):
    for name, value in (("EXPERIMENT_NAME", "theirs"), ("RUN_CONTEXT", '{"team": "vision", "n": 1}')):
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    monkeypatch.setattr("sys.orig_argv", ["python", "/bin/runner"])
    run = MlflowClient(uri).get_run(opener(uri, experiment=None).run_id)
    assert run.data.tags["mlflow.source.name"] == "runner"
    assert MlflowClient(uri).get_experiment(run.info.experiment_id).name == "theirs"
    assert [run.data.tags[key] for key in ("team", "n")] == ["vision", "1"]
    assert experiment_name("mine") == "mine"
    for context in ("[1]", ""):
        monkeypatch.setenv("MLFLOW_RUN_CONTEXT", context)
        with pytest.raises(ConfigError, match=r"MLFLOW_RUN_CONTEXT=.*: must be a JSON object of tags; export"):
            location.check(TrackingConfig())
