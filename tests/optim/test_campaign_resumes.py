"""The real command resumes runs of Keras's optimizers bit for bit, with `resume=latest`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.running import differences, last
from tests.run.test_runs import run

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

# Factored state, and a number of the whole optimizer. Pixels of digits that are always black have a gradient of zero,
# for which Keras's own epsilon is too small (docs/bugs.md).
CASES = {"Adafactor": ["+optimizer.epsilon_1=1e-16"], "Nadam": []}
# The rate changes in every step and does not depend on the length of the run.
_COMMON = [
    "engine=jax",
    "mesh=batch4_model2",
    "layout=fsdp_megatron",
    "model.hidden=[32,16]",
    "optimizer=keras",
    "optimizer.learning_rate=0.003",
    "optimizer.schedule.name=exponential",
    "optimizer.schedule.decay_steps=3",
    "trainer.evaluate_every_steps=6",
    "trainer.log_every_steps=1",
    "tracking=none",
]


@pytest.mark.parametrize("optimizer", CASES)
def test_a_run_that_is_resumed_equals_the_run_that_was_never_ended(tmp_path: Path, optimizer: str) -> None:
    chosen = [*_COMMON, f"optimizer.class_name={optimizer}", *CASES[optimizer]]
    folders = {name: tmp_path / name for name in ("whole", "parts")}
    own = {}
    for name, folder in folders.items():
        folder.mkdir()
        own[name] = f"trainer.checkpoint.folder={folder / 'checkpoints'}"
    run(folders["whole"], *chosen, own["whole"], "trainer.steps=12", library="jax")
    run(folders["parts"], *chosen, own["parts"], "trainer.steps=6", library="jax")
    half = last(folders["parts"])
    assert half.step == 6
    run(folders["parts"], own["parts"], "resume=latest", "trainer.steps=12", library="jax")
    whole, resumed = last(folders["whole"]), last(folders["parts"])
    assert (whole.step, resumed.step) == (12, 12)
    assert any(path.startswith("optimizer/") and (half[path] != whole[path]).any() for path in half), "it trained on"
    assert differences(whole, resumed) == {}
