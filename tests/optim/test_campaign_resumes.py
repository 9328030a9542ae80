"""The real command resumes runs of Keras's optimizers bit for bit, with `resume=latest`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.running import differences, last
from tests.run.test_runs import run

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

# Elementwise, factored, and with matrix products. On DTensor, only the first kind has a rule of ours.
CASES = [("jax", "Lion"), ("jax", "Adafactor"), ("jax", "Muon"), ("keras_dtensor", "Lion")]
# Pixels of digits that are always black have a gradient of zero, for which Keras's own epsilon is too small
# (docs/bugs.md).
_OPTIONS = {"Adafactor": ["+optimizer.epsilon_1=1e-16"]}
_LIBRARIES = {"jax": "jax", "keras_dtensor": "tensorflow"}
# The rate changes in every step and does not depend on the length of the run.
_COMMON = [
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


@pytest.mark.parametrize(("engine", "optimizer"), CASES)
def test_a_run_that_is_resumed_equals_the_run_that_was_never_ended(
    tmp_path: Path, engine: str, optimizer: str
) -> None:
    chosen = [*_COMMON, f"engine={engine}", f"optimizer.class_name={optimizer}", *_OPTIONS.get(optimizer, [])]
    folders = {name: tmp_path / name for name in ("whole", "parts")}
    own = {}
    for name, folder in folders.items():
        folder.mkdir()
        own[name] = f"trainer.checkpoint.folder={folder / 'checkpoints'}"
    library = _LIBRARIES[engine]
    run(folders["whole"], *chosen, own["whole"], "trainer.steps=12", library=library)
    run(folders["parts"], *chosen, own["parts"], "trainer.steps=6", library=library)
    half = last(folders["parts"])
    assert half.step == 6
    run(folders["parts"], own["parts"], "resume=latest", "trainer.steps=12", library=library)
    whole, resumed = last(folders["whole"]), last(folders["parts"])
    assert (whole.step, resumed.step) == (12, 12)
    assert any(path.startswith("optimizer/") and (half[path] != whole[path]).any() for path in half), "it trained on"
    assert differences(whole, resumed) == {}
