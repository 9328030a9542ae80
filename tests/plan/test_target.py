"""Plans by the compilers of GPUs and TPUs, none of which is here: state by hand arithmetic.

The compilers are not in the tests' environment, because the wheels of CUDA take 4.9 GB and that of TPUs 0.7 GB. The
first test that needs one installs it into `.venv/cuda` or `.venv/tpu`, with the versions of constraints.txt. On 26
November 2026 CUDA took 79 CPU seconds.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks

CONSTRAINTS = forks.ROOT / "constraints.txt"
# The packages of a compiler, and the bytes of their wheels and of pip's copies while it unpacks them.
WHEELS = {"cuda": ("jax-cuda12-plugin[with-cuda]", 12 << 30), "tpu": ("libtpu", 2 << 30)}
# The download is most of it.
LONGEST_INSTALL_S = 1500.0
COMMON = (
    *("layout=fsdp_megatron", "engine=jax", "engine.precision=bfloat16", "optimizer=adamw", "dataset=synthetic"),
    *("dataset.batch_size=16", "task=language_model", "task.sample.prompt=null", "model=gpt", "model.bias=false"),
    *("model.norm=rms", "model.positions=rotary", "model.scan=true", "model.remat=full"),
    *("plan.compiler=target", "engine.compilation_cache=false"),
)
LLAMA_70B = (
    *("hardware=h100", "mesh.axes={batch:8,model:8}", "task.vocabulary=128256", "dataset.length=8192"),
    *("model.dim=8192", "model.depth=80", "model.heads=64", "model.key_value_heads=8"),
    *("model.feedforward=28672", "model.activation=swiglu"),
)
TINY_GPT = (
    *("hardware=v5e", "mesh.axes={batch:4,model:4}", "task.vocabulary=4096", "dataset.length=512"),
    *("model.dim=512", "model.depth=2", "model.heads=8"),
)


def packages(extra: str) -> Path:
    """Returns the folder of the packages of an extra of pyproject.toml, which are installed if they are not there yet.

    A test that calls it is skipped, with the reason, where pip can't get them.
    """
    requirement, disk_bytes = WHEELS[extra]
    folder = forks.ROOT / ".venv" / extra
    # Written last, so that an installation that was killed counts as none. It names the versions.
    complete = folder / "complete"
    pinned = CONSTRAINTS.read_text()
    if complete.exists() and complete.read_text() == pinned:
        return folder
    folder.parent.mkdir(exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < disk_bytes:
        pytest.skip(f"{free >> 30} GiB of disk are free, and the wheels of the extra {extra} need more")
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    command += ["-c", str(CONSTRAINTS), "--target", str(folder), requirement]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_INSTALL_S, check=True)
    except subprocess.SubprocessError as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = str(getattr(error, "stderr", None) or error)
        pytest.skip(f"pip can't get the extra {extra}: {reason[-500:]}")
    complete.write_text(pinned)
    return folder


def of_llama() -> int:
    """Kernels and tables are over all 64 devices, and the scales of norms over the 8 of `batch`."""
    dim, depth, hidden, vocabulary, key_value_width = 8192, 80, 28672, 128256, 8 * 128
    attention = 2 * dim * dim + 2 * dim * key_value_width
    kernels = depth * (attention + 3 * dim * hidden) + 2 * vocabulary * dim
    return 4 * kernels // 64 + 4 * (2 * depth + 1) * dim // 8


def of_tiny_gpt() -> int:
    """Four kernels of attention and two of the feed-forward part, whose hidden width is 4 * dim, in each block.

    Beside them a table of embeddings and a head. All are split over the 16 devices, the scales of a block's norms over
    the 4 of `batch`, and the scale of the last norm is replicated.
    """
    dim, depth, vocabulary = 512, 2, 4096
    kernels = depth * (4 + 2 * 4) * dim * dim + 2 * vocabulary * dim
    return 4 * kernels // 16 + 4 * 2 * depth * dim // 4 + 4 * dim


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("extra", "words", "weights"), [("cuda", LLAMA_70B, of_llama()), ("tpu", TINY_GPT, of_tiny_gpt())]
)
def test_the_compiler_of_absent_hardware_plans_a_transformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, words: tuple[str, ...], weights: int
) -> None:
    # Programs are forked of a process that has imported JAX without the compiler.
    monkeypatch.setenv(*forks.REAL)
    variables = {"PYTHONPATH": os.pathsep.join([str(forks.ROOT), str(packages(extra))]), "JAX_PLATFORMS": "cpu"}
    arguments = ("-m", "runner.plan", *COMMON, *words, f"hydra.run.dir={tmp_path / 'run'}")
    forks.python(*arguments, folder=tmp_path, **variables, XLA_FLAGS="")
    forecast = json.loads((tmp_path / "run" / "plan.json").read_text())["forecast"]
    memory = {part["kind"]: part["bytes"] for part in forecast["memory"]}
    assert memory["weights"] == weights
    # AdamW has two moments, float32 too.
    assert memory["optimizer state"] == 2 * weights
    assert memory["temporaries"] > 0
    assert forecast["depth"] == "target"
