"""The generate command from its command lines: the same text on a mesh and on one device, and what is invalid."""

import json
import subprocess
from pathlib import Path

import pytest

from tests import forks
from tests.commands import ran

pytestmark = pytest.mark.nightly

LANGUAGE_MODEL = [
    "dataset=pydoc",
    "task=language_model",
    "model=gpt",
    "model.dim=16",
    "model.depth=1",
    "dataset.sequence_length=32",
    "dataset.batch_size=8",
    "dataset.eval_batch_size=32",
    "trainer.epochs=2",
    # Enough that the tokens' scores differ by far more than rounding.
    "trainer.steps_per_epoch=40",
    "trainer.limit_eval_batches=2",
    "task.sample={prompt: The, tokens: 12, temperature: 0}",
    "mesh=batch8",
    "tracking=none",
]
PROMPT = "prompt='The import'"
GREEDY = "generate.temperature=0"


def run(folder: Path, module: str, *overrides: str, engine: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return ran(folder, module, *overrides, library=forks.OF_ENGINE[engine], code=code, XDG_CACHE_HOME=str(folder))


def text(folder: Path, engine: str, name: str, *overrides: str) -> str:
    where = folder / name
    run(folder, "runner.generate", "run=latest", f"hydra.run.dir={where}", *overrides, engine=engine)
    return str(json.loads((where / "generate.json").read_text())["text"])


@pytest.mark.parametrize("engine", forks.OF_ENGINE)
def test_a_mesh_and_one_device_write_the_same_text(tmp_path: Path, engine: str) -> None:
    where = f"hydra.run.dir={tmp_path / 'run'}"
    trained = run(tmp_path, "runner", *LANGUAGE_MODEL, f"engine={engine}", where, engine=engine)
    assert "sample of samples/step_000000080.txt:" in trained.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {"eval_perplexity", "eval_bits_per_byte", "eval_accuracy", "tokens_per_second"} <= set(summary)

    greedy = text(tmp_path, engine, "greedy", PROMPT, GREEDY)
    assert greedy == text(tmp_path, engine, "greedy_one", PROMPT, GREEDY, "mesh=single")
    assert greedy.startswith("The import")
    # In one process or two.
    if engine == "jax":
        two = ["cluster=local", "cluster.processes=2"]
        assert greedy == text(tmp_path, engine, "two_processes", PROMPT, GREEDY, *two)

    drawn = text(tmp_path, engine, "drawn", PROMPT, "generate.seed=1")
    assert drawn == text(tmp_path, engine, "drawn_one", PROMPT, "generate.seed=1", "mesh=single")
    assert drawn != greedy
    assert drawn != text(tmp_path, engine, "other_seed", PROMPT, "generate.seed=2")

    # The command continues a prompt as the run's own samples do.
    (last,) = (tmp_path / "run" / "samples").glob("step_000000080.txt")
    alone = text(tmp_path, engine, "alone", "prompt=The", GREEDY, "generate.tokens=12")
    assert last.read_text() == f"step 80, seed 1337\n--- greedy\n{alone}\n"


def test_a_run_without_a_language_model_is_one_line(tmp_path: Path) -> None:
    digits = ["dataset=digits", "trainer.epochs=1", "trainer.steps_per_epoch=2", "tracking=none", "engine=jax"]
    run(tmp_path, "runner", *digits, engine="jax")
    done = run(tmp_path, "runner.generate", "run=latest", "prompt=a", engine="jax", code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: run=")
    assert "task=classification, but runner.generate needs a language model" in line
