import re

import pytest
from mlflow import MlflowClient

from runner.cli.runs import main
from tests.tracking.server import Server


@pytest.fixture
def server(uri, tmp_path):
    server = Server(uri, tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.mark.nightly
def test_no_point_is_lost_or_doubled_when_the_server_goes_away_and_returns(
    opener, server, rows, unsent, tmp_path, capsys
):
    tracker = opener(server.uri)
    page = tmp_path / "config.yaml"
    page.write_text("a: 1\n")
    for step in range(400):
        tracker.log_metrics(step, {"loss": step / 8})
        if step == 100:
            assert tracker._writer.flush(30)
        if step == 200:
            server.kill()  # with a batch on its way, perhaps
    tracker.log_artifact(page)
    assert not tracker._writer.flush(3)
    for step in range(400, 600):
        tracker.log_metrics(step, {"loss": step / 8})
    server.start()
    tracker.finish("FINISHED")
    assert rows("loss") == [(step, step / 8) for step in range(600)]
    run = MlflowClient(tracking_uri=server.uri).get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert [one.path for one in MlflowClient(server.uri).list_artifacts(tracker.run_id)] == ["config.yaml"]
    assert unsent(tracker) is None
    assert tracker.describe()[0].startswith(f"run: {server.uri}/#/experiments/")
    said = capsys.readouterr().err
    assert re.search(r"store unavailable \(Connection (refused|reset|broken|aborted)\)", said)  # by what it was at
    assert "store available again" in said


@pytest.mark.nightly
@pytest.mark.slow
def test_what_a_dead_server_missed_lies_in_the_runs_file_and_is_stored_by_sync(
    opener, server, rows, unsent, tmp_path, capsys
):
    tracker = opener(server.uri, finish_timeout_s=2)
    page = tmp_path / "run" / "config.yaml"
    page.write_text("a: 1\n")
    for step in range(300):
        tracker.log_metrics(step, {"loss": step / 8})
        if step == 99:
            assert tracker._writer.flush(30)
    server.kill()
    tracker.log_artifact(page)
    tracker.set_tags({"note": "late"})
    tracker.finish("FAILED")
    assert unsent(tracker) is not None
    assert f"python -m runner.runs sync folder={tmp_path / 'run'}" in capsys.readouterr().err

    server.start()
    assert main(["sync", f"uri={server.uri}", f"folder={tmp_path}"]) == 0
    assert rows("loss") == [(step, step / 8) for step in range(300)]
    client = MlflowClient(tracking_uri=server.uri)
    run = client.get_run(tracker.run_id)
    assert (run.info.status, run.data.tags["note"]) == ("FAILED", "late")
    assert [one.path for one in client.list_artifacts(tracker.run_id)] == ["config.yaml"]
    assert unsent(tracker) is None
