"""A run in several processes is the run in one: each parameter, slot, logged point and evaluation, to the last bit."""

from pathlib import Path

import pytest

from tests.nightly import nightly_except
from tests.processes.running import alike, differences, last, points, run, several

pytestmark = pytest.mark.slow

TWICE = "mesh.axes={model:2,batch:2}"  # the axis of the model is the outer one, and crosses processes
PLACES = [("mesh=batch2", "replicated", 2), (TWICE, "fsdp_megatron", 4)]


@pytest.mark.parametrize(("mesh", "layout", "count"), nightly_except(PLACES[:1], PLACES))
def test_several_processes_train_as_one_does_bit_for_bit(tmp_path: Path, mesh: str, layout: str, count: int) -> None:
    chosen = ("engine=jax", mesh, f"layout={layout}", "trainer.epochs=1")
    alone, together = tmp_path / "alone", tmp_path / "together"
    run(alone, *chosen)
    done = run(together, *chosen, *several(count))
    assert differences(last(alone), last(together)) == {}
    (one, theirs), (only, ours) = points(alone), points(together)
    assert alike(ours) == alike(theirs)
    assert len(alike(ours)["train/loss"]) == 22
    assert one.info.status == only.info.status == "FINISHED"
    assert "test accuracy" in done.stdout
    assert "[1]" not in done.stdout + done.stderr, "process 0 alone shows what all have to say"


@pytest.mark.nightly
def test_process_0_records_and_each_process_logs_below_its_folder(tmp_path: Path) -> None:
    chosen = ("engine=jax", "mesh=batch2", "trainer.epochs=1", "trainer.profile.start=2", "trainer.profile.steps=1")
    run(tmp_path, *chosen, *several(2))
    folder = tmp_path / "run"
    assert {"runner.log", "config.yaml", "curves.png", "summary.json"} <= {path.name for path in folder.iterdir()}
    own = folder / "processes" / "1"
    assert (own / "runner.log").is_file()
    assert (own / "output.log").is_file()
    assert not (own / "summary.json").exists()
    said = [line for line in (own / "runner.log").read_text().splitlines() if "steps run in a loop" in line]
    assert said
    only, _ = points(tmp_path)
    assert only.data.params["cluster.processes"] == "2"
