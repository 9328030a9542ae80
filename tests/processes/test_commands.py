"""Every command that computes takes a cluster: verify, evaluate, export, sweeps."""

import json
from pathlib import Path

import pytest

from tests.processes.running import points, run, several

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

WRONG = """
import os

os.environ["KERAS_BACKEND"] = "jax"
import runner.engine.jax.processes as processes

def placed_all(arrays, shardings, plain=processes.placed_all):
    from runner.cluster.team import current
    if current().index == 1 and "image" in arrays:
        arrays = {**arrays, "image": arrays["image"] * 0.5}
    return plain(arrays, shardings)

processes.placed_all = placed_all
"""


def test_verify_holds_several_processes_against_one_device(tmp_path: Path) -> None:
    chosen = ("engine=jax", "mesh=batch4", "layout=fsdp", "verify.steps=3", *several(2))
    assert "verified: 3 steps on batch=4 match one device" in run(tmp_path, *chosen, module="runner.verify").stdout


def test_verify_sees_a_process_that_trains_on_something_else(tmp_path: Path) -> None:
    worker = (
        "from runner.verify import worker\nimport sys\n" + WRONG + "if __name__ == '__main__':\n    worker.main()\n"
    )
    (tmp_path / "wrong_worker.py").write_text(worker)
    (tmp_path / "wrong_verify.py").write_text(
        "from runner.cli import entry\nfrom runner.verify import record\nrecord.WORKER = 'wrong_worker'\n"
        "run = record.run\n"
        "if __name__ == '__main__':\n    entry.main('wrong_verify')\n"
    )
    chosen = ("engine=jax", "mesh=batch2", "verify.steps=2", *several(2), f"hydra.run.dir={tmp_path / 'run'}")
    done = run(tmp_path, *chosen, module="wrong_verify", code=1)
    assert "error: d1/kernel" in done.stderr or "differs" in done.stderr
    assert done.stderr.count("error: ") == 1


def test_evaluate_and_export_in_several_processes_give_what_one_gives(tmp_path: Path) -> None:
    chosen = ("mesh.axes={model:2,batch:2}", "layout=fsdp_megatron", "trainer.epochs=1")
    run(tmp_path, "engine=jax", *chosen, *several(2))
    _, ours = points(tmp_path)
    for count in (1, 4):
        run(tmp_path, "run=latest", *several(count), module="runner.evaluate", library="jax")
        _, found = points(tmp_path)
        key = next(key for key in found if key.startswith("evaluate") and key.endswith("accuracy"))
        assert found[key][-1][1] == ours["eval/accuracy"][-1][1]
    done = run(
        tmp_path,
        "run=latest",
        f"export.folder={tmp_path / 'served'}",
        *several(2),
        module="runner.export",
        library="jax",
    )
    assert "model.keras" in done.stdout
    record = json.loads(next((tmp_path / "served").glob("*.json")).read_text())
    assert record["step"] == 22
