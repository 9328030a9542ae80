"""Runs with checkpoints in an object store, on a server that loses requests, end as with a local folder."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("obstore")

from runner.checkpoint import files, storage
from runner.checkpoint.places import ObjectPath
from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.runs import RECORD
from runner.cluster import process as process_of
from tests import forks, object_server
from tests.commands import ran
from tests.object_server import BUCKET, GoogleProxy, Proxy
from tests.proc import until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(object_server.interpreter() is None, reason="needs moto: see tests/object_server.py"),
]

CONFIG = (
    *("dataset=digits", "model=mlp", "model.hidden=[8]", "trainer.epochs=3", "trainer.limit_eval_batches=1"),
    *("trainer.checkpoint.every_steps=3", "trainer.steps_per_call=1", "trainer.progress=none", "tracking=none"),
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with object_server.moto() as port:
        yield port


def done(folder: Path, environment: dict[str, str], library: str, *words: str) -> str:
    completed = ran(folder, *words, library=library, **environment)
    assert "hunter2" not in completed.stdout + completed.stderr
    return completed.stdout + completed.stderr


def killed(folder: Path, environment: dict[str, str], library: str, saved: ObjectPath, *words: str) -> None:
    """Starts a command, kills it when it has saved a checkpoint that is not its first, and waits for its processes.

    The processes of a launcher that is killed are sent SIGTERM by the kernel, and take some seconds to end. A run
    that is started in that time is told that this one is in use.
    """
    arguments = [sys.executable, "-m", *words]
    with forks.Popen(arguments, library=library, cwd=folder, env=os.environ | environment) as process:
        until(lambda: max(storage.steps(saved), default=0) >= 3 or process.poll() is not None)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: process_of.is_gone(files.read_json(saved / RECORD, files.LARGEST_RECORD)["process"]))


@pytest.mark.parametrize(
    ("engine", "cluster"), [("jax", "cluster=local cluster.processes=2 mesh=batch2"), ("keras_dtensor", "mesh=batch2")]
)
def test_a_killed_run_resumes_bit_for_bit_on_a_store_that_loses_requests(
    engine: str, cluster: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(port, rejects=0.1)
    with object_server.proxied(proxy):
        check_a_run(f"s3://{BUCKET}", engine, cluster, proxy.environment(), tmp_path, monkeypatch)
        assert proxy.rejected > 3


def test_a_killed_run_resumes_bit_for_bit_on_a_store_with_googles_protocol(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = GoogleProxy(port)
    with object_server.proxied(proxy):
        check_a_run(f"gs://{BUCKET}", "jax", "mesh=batch2", proxy.service_account(tmp_path), tmp_path, monkeypatch)
        # Each of two attempts claims its place.
        assert proxy.conditions >= 2


def check_a_run(
    store: str, engine: str, cluster: str, environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trains, is killed, resumes, evaluates, exports and cleans, and compares with checkpoints in a local folder."""
    library = forks.OF_ENGINE[engine]
    # The tests share a server, and what one leaves behind must not be another's run.
    root = ObjectPath(store, folder.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    files._store.cache_clear()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = ["runner", *CONFIG, f"engine={engine}", "resume=auto", "name=exp1", *cluster.split()]
    local = folder / "local"
    done(folder, {}, library, *config, f"trainer.checkpoint.folder={local}")

    here = (folder, environment, library)
    in_store = f"trainer.checkpoint.folder={root}"
    killed(*here, root / "exp1", *config, in_store)
    output = done(*here, *config, in_store)
    assert "Resuming run" in output
    last = storage.steps(local / "exp1")[-1]
    expected = Checkpoint(storage.place(local / "exp1", last))
    resumed = Checkpoint(storage.place(root / "exp1", last))
    assert set(resumed) == set(expected)
    for path in expected:
        np.testing.assert_array_equal(resumed[path], expected[path], err_msg=path)
    done(*here, "runner.evaluate", "run=exp1", in_store)
    done(*here, "runner.export", f"run={root}/exp1@best")
    _check_no_secret_is_recorded(folder)
    done(*here, "runner.runs", "clean", f"folder={root}", "uri=none", "run=exp1", "yes=true")
    assert not files.names(root / "exp1")


def _check_no_secret_is_recorded(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path
