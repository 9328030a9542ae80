"""Presets of KerasHub from the command line: fine-tuned under fsdp, resumed, evaluated, exported and loaded again."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.layout.paths import is_variable
from tests.commands import ran
from tests.docs import pages
from tests.processes.running import differences, last

pytestmark = pytest.mark.nightly

FSDP = ["engine=jax", "mesh=batch8", "layout=fsdp", "model=keras_hub", "trainer.limit_eval_batches=2"]
TEXT = ["task=language_model", "dataset=pydoc", "dataset.sequence_length=16", "dataset.batch_size=8"]
TEXT += ["dataset.test='test[:32]'", "trainer.steps_per_epoch=3", "task.sample.tokens=4"]
# KerasHub's dropout is on in training, so that the seed is part of what resumes.
ADAPTERS = re.compile(r".*self_attention(_layer)?/(query|value)/lora_kernel_[ab]")
KEY_BIASES = {"transformer_layer_1/self_attention/key/bias"}  # whose gradient is nothing but rounding
# A float32 sum of the kernel and its adapter, in another order than the adapter on its own.
RELATIVE = 1e-5


def start(folder: Path, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    return ran(folder, module, *words, library="jax", XDG_CACHE_HOME=str(folder.parent))


def run(folder: Path, module: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the runner, whose checkpoints lie in the folder."""
    own = [f"trainer.checkpoint.folder={folder / 'checkpoints'}", f"hydra.run.dir={folder / 'run'}"]
    return start(folder, module, "tracking=none", *overrides, *own)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("presets")
    start(folder, "tests.run.preset_worker", "make", str(folder))
    return folder


@pytest.mark.parametrize(
    ("rank", "options"),
    [(4, TEXT), (0, [*TEXT, 'model.trainable=["transformer_layer_1/.*/bias","layer_norm/.*"]'])],
    ids=["lora", "patterns"],
)
def test_a_preset_is_fine_tuned_resumed_evaluated_exported_and_loaded_again(
    tmp_path: Path, made: Path, rank: int, options: list[str]
) -> None:
    chosen = [*FSDP, *options, "model.preset=gpt2", *([f"model.lora_rank={rank}"] if rank else [])]
    straight, again = tmp_path / "straight", tmp_path / "again"
    for folder in (straight, again):
        shutil.copytree(made, folder)
    run(straight, "runner", *chosen, "trainer.epochs=2")
    plan = json.loads((straight / "run" / "plan.json").read_text())
    kernels = [one for one in plan["variables"] if re.fullmatch(r".*self_attention(_layer)?/\w+/kernel", one["path"])]
    assert len(kernels) == 8
    assert all("batch" in one["spec"] for one in kernels), "fsdp splits the kernels of these sizes"

    run(again, "runner", *chosen, "trainer.epochs=1")
    run(again, "runner", "resume=latest", "trainer.epochs=2")
    assert differences(last(straight), last(again)) == {}
    run(again, "runner.evaluate", "run=latest")
    evaluated = json.loads((again / "run" / "evaluate.json").read_text())
    trained = json.loads((straight / "run" / "summary.json").read_text())
    assert evaluated["loss"] == trained["eval_loss"]

    run(again, "runner.export", "run=latest", "export.folder=exported")
    done = start(again, "tests.run.preset_worker", "check", str(rank), str(again))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["difference"] <= RELATIVE * found["scale"]
    assert (found["unknown"], found["missing"]) == ([], [])
    wanted = trained_of(rank, list(last(again)))
    assert wanted - KEY_BIASES <= set(found["moved"]) <= wanted


PAGE = "keras_hub"


def test_the_pages_own_fine_tuning_runs_with_a_preset_that_has_a_tokenizer(tmp_path: Path) -> None:
    start(tmp_path, "tests.run.preset_worker", "make_with_tokenizer", str(tmp_path))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text(pages.section(PAGE, ""))
    pages.write_files(PAGE, tmp_path)
    commands = next(text for kind, text in pages.blocks(PAGE, "## Fine-tuning") if kind.startswith("sh"))
    write, train = (shlex.split(line) for line in commands.replace("\\\n", " ").strip().splitlines())
    subprocess.run([sys.executable, *write[1:]], cwd=tmp_path, check=True, timeout=120)
    assert train[:3] == ["python", "-m", "runner"]
    small = ["trainer.epochs=1", "trainer.steps_per_epoch=2", "dataset.sequence_length=16", "dataset.batch_size=8"]
    small += ["dataset.eval_batch_size=8", "trainer.limit_eval_batches=1"]
    run(tmp_path, "runner", *train[3:], *small)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval_loss"] > 0
    bytes_ = [each for each in train[3:] if not each.startswith("dataset.tokenizer")]
    done = ran(tmp_path, "runner", "tracking=none", *bytes_, "task.vocabulary=300", library="jax", code=2)
    assert "its tokens are not those of the preset (GPT2Tokenizer); use the preset's tokenizer" in done.stderr


def trained_of(rank: int, paths: list[str]) -> set[str]:
    """Returns the paths that may move."""
    pattern = ADAPTERS.pattern if rank else r"transformer_layer_1/.*/bias|layer_norm/.*"
    return {path for path in paths if is_variable(path) and re.fullmatch(pattern, path)}
