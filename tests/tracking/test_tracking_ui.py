"""The command and the addresses that a run prints of its page work."""

import json
import re
import shlex
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from runner.cluster.launch import free_port
from tests.tracking.conftest import Opener
from tests.tracking.server import environment, wait_until_up

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_the_printed_command_serves_the_run_at_the_printed_address(opener: Opener, uri: str, tmp_path: Path) -> None:
    tracker = opener(uri, params={"dataset.batch_size": 128})
    tracker.log_metrics(1, {"eval/accuracy": 0.5})
    tracker.finish("FINISHED")
    port = str(free_port())
    serve, page, all_runs, _ = [line.replace("5000", port) for line in tracker.describe()]
    address, run_id = re.fullmatch(r"run: (http://[\d.:]+)/#/experiments/\d+/runs/(\w+)\?.*", page).groups()  # type: ignore[union-attr]
    assert all_runs.startswith(f"all runs: {address}/#/experiments/")
    command = [*shlex.split(serve.removeprefix("view with: ")), f"port={port}"]
    process = subprocess.Popen(command, env=environment(), cwd=tmp_path)
    try:
        wait_until_up(address, process)
        with urllib.request.urlopen(address) as response:
            assert b"<html" in response.read()
        with urllib.request.urlopen(f"{address}/api/2.0/mlflow/runs/get?run_id={run_id}") as response:
            data = json.load(response)["run"]["data"]
        assert data["params"] == [{"key": "dataset.batch_size", "value": "128"}]
        assert data["metrics"][0]["value"] == 0.5
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(address)
    finally:
        process.terminate()
