"""Runs whose data is in an object store that loses requests end as with local files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("obstore")

from runner.host.stores import client
from runner.host.stores.urls import ObjectPath
from tests import forks, object_server
from tests.object_server import BUCKET, Proxy

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(object_server.interpreter() is None, reason="needs moto: see tests/object_server.py"),
]

CONFIG = (
    *("task=regression", "task.target=y", "model=mlp", "model.hidden=[8]", "mesh=batch2", "trainer.epochs=2"),
    *("dataset.batch_size=16", "trainer.progress=none", "tracking=none", "dataset=parquet", "dataset.test=train"),
)
TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with object_server.moto() as port:
        yield port


def loss(folder: Path, name: str, path: str, environment: dict[str, str], *, clustered: bool = False) -> float:
    """Returns the train loss at the end of a run."""
    run = folder / name
    command = [sys.executable, "-m", "runner", *CONFIG, "engine=jax", f"dataset.path={path}", f"hydra.run.dir={run}"]
    if clustered:
        command += ["cluster=local", "cluster.processes=2"]
    done = forks.run(command, cwd=folder, env=os.environ | environment, timeout=TIMEOUT_S, library=forks.JAX)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    return float(json.loads((run / "summary.json").read_text())["train_loss"])


def test_a_run_on_data_in_a_store_equals_one_on_local_files(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = np.random.default_rng(0)
    data = tmp_path / "rides"
    data.mkdir()
    for number in range(3):
        x = draw.normal(size=64)
        pq.write_table(pa.table({"x": x, "y": 2.0 * x}), data / f"train-0000{number}-of-00003.parquet")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    client._store.cache_clear()
    expected = loss(tmp_path, "local", str(data), {})
    with object_server.proxied(Proxy(port, rejects=0.1)) as proxy:
        environment = proxy.environment()
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        root = ObjectPath(f"s3://{BUCKET}", "rides")
        for file in data.iterdir():
            client.write(root / file.name, file.read_bytes())
        assert loss(tmp_path, "stored", str(root), environment) == expected
        [mirror] = (tmp_path / "cache" / "runner" / "mirrors").glob("*/rides")
        assert sorted(path.name for path in mirror.iterdir()) == sorted(path.name for path in data.iterdir())
        before = proxy.requests
        assert loss(tmp_path, "again", str(root), environment, clustered=True) == pytest.approx(expected, rel=1e-5)
        # Listed, and not copied again.
        assert proxy.requests - before < 3 * len(list(data.iterdir())) + 20
        assert proxy.rejected
