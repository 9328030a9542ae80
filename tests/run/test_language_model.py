"""A language model from its command lines. Of its samples, see tests/generate; of its losses, tests/golden."""

import json
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests import forks
from tests.commands import ran
from tests.data import texts
from tests.docs import pages
from tests.processes.running import columns, differences, last

pytestmark = pytest.mark.nightly

TEXT = [
    *("dataset=pydoc", "task=language_model", "model=gpt", "model.dim=16", "model.depth=1", "tracking=none"),
    *("dataset.sequence_length=16", "dataset.batch_size=8", "dataset.eval_batch_size=32", "trainer.epochs=2"),
    *("trainer.steps_per_epoch=6", "trainer.limit_eval_batches=2", "task.sample.tokens=5", "task.sample.prompt=def"),
]


def run(folder: Path, module: str, *overrides: str, engine: str) -> subprocess.CompletedProcess[str]:
    return ran(folder, module, *overrides, library=forks.OF_ENGINE[engine], XDG_CACHE_HOME=str(folder.parent))


def in_folder(folder: Path, engine: str, *overrides: str) -> None:
    """Trains where `last` finds the checkpoints."""
    run(folder, "runner", f"trainer.checkpoint.folder={folder / 'checkpoints'}", *overrides, engine=engine)


TWICE = "mesh.axes={model:2,batch:2}"  # the axis of the model is the outer one, and crosses processes


@pytest.mark.parametrize(("engine", "options"), [("jax", ["engine.precision=bfloat16"]), ("keras_dtensor", [])])
def test_a_run_resumes_bit_for_bit_and_its_export_writes_what_the_run_writes(
    tmp_path: Path, engine: str, options: list[str]
) -> None:
    file = tmp_path / "tokenizer.json"
    texts.tokenizer([*topics.values()], 320, "<|end|>").save(str(file))
    own = [f"dataset.tokenizer={file}", "dataset.end_token='<|end|>'"]
    chosen = [*TEXT, *own, f"engine={engine}", "mesh=batch4_model2", "layout=fsdp_megatron", *options]
    straight, again = tmp_path / "straight", tmp_path / "again"
    in_folder(straight, engine, *chosen)
    in_folder(again, engine, *[one for one in chosen if one != "trainer.epochs=2"], "trainer.epochs=1")
    in_folder(again, engine, "resume=latest", "trainer.epochs=2")
    assert differences(last(straight), last(again)) == {}

    saved = f"trainer.checkpoint.folder={again / 'checkpoints'}"
    how = ["generate.temperature=0", "generate.tokens=9", "hydra.run.dir=written"]
    run(again, "runner.generate", "run=latest", "prompt='The import'", *how, saved, engine=engine)
    greedy = json.loads((again / "written" / "generate.json").read_text())["text"]
    assert greedy.startswith("The import")
    run(again, "runner.export", "run=latest", "export.folder=served", "dataset.test='test[:32]'", saved, engine=engine)
    assert {"tokenizer.json", "saved_model", "export.json"} <= {path.name for path in (again / "served").iterdir()}
    (again / "generate.py").write_text(pages.files("language_models")["generate.py"])
    done = subprocess.run(
        [sys.executable, "generate.py", "served", "The import"], cwd=again, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(greedy)


# XLA's products on CPUs add up in an order that goes by a process's threads: one process that
# is held to one core differs from itself by as much.
RELATIVE = 2e-5
ROUNDING = "attention/key/bias"  # whose gradient is nothing else


@pytest.mark.parametrize(("mesh", "layout"), [("mesh=batch2", "fsdp"), (TWICE, "megatron")])
def test_two_processes_draw_and_train_what_one_does(tmp_path: Path, mesh: str, layout: str) -> None:
    chosen = [*TEXT, "engine=jax", mesh, f"layout={layout}", "model.dropout=0.1"]
    in_folder(tmp_path / "one", "jax", *chosen)
    in_folder(tmp_path / "two", "jax", *chosen, "cluster=local", "cluster.processes=2")
    one, two = last(tmp_path / "one"), last(tmp_path / "two")
    largest = {path: float(np.abs(one[path]).max(initial=0.0)) for path in one}
    largest |= {key: float(np.abs(values).max(initial=0.0)) for key, values in columns(one).items()}
    apart = differences(one, two)
    assert not {key: each for key, each in apart.items() if ROUNDING not in key and each > RELATIVE * largest[key]}


def test_a_tokenizers_file_may_be_gone_but_not_another_when_its_run_is_evaluated(tmp_path: Path) -> None:
    folder, file = tmp_path / "one", tmp_path / "tokenizer.json"
    text = "".join(f"{number} is {number % 7} more than a multiple of seven.\n" for number in range(2000))
    (tmp_path / "notes.txt").write_text(text)
    learned = tokenizers.ByteLevelBPETokenizer()
    learned.train_from_iterator([text], vocab_size=300, show_progress=False)
    learned.save(str(file))
    own = ["dataset=text", f"dataset.path={tmp_path / 'notes.txt'}", f"dataset.tokenizer={file}"]
    in_folder(folder, "jax", *own, *TEXT[1:], "task.sample.prompt=7", "engine=jax", "mesh=batch2")
    saved = f"trainer.checkpoint.folder={folder / 'checkpoints'}"

    def evaluated(where: str) -> Any:
        run(folder, "runner.evaluate", "run=latest", saved, f"hydra.run.dir={where}", engine="jax")
        (report,) = (path for path in (folder / where).glob("*.json") if "metrics" in path.read_text())
        return json.loads(report.read_text())["metrics"]

    there = evaluated("there")
    assert there["perplexity"] > 1
    file.rename(tmp_path / "moved.json")
    assert evaluated("gone") == there
    learned.add_tokens(["seven"])
    learned.save(str(file))
    done = ran(folder, "runner.evaluate", "run=latest", saved, library="jax", code=2, XDG_CACHE_HOME=str(tmp_path))
    assert "dataset.tokenizer" in done.stderr
    assert len(done.stderr.splitlines()) == 1
