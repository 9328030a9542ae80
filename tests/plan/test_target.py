"""Plans by the compilers of GPUs and TPUs, none of which is here: what they take, and state by hand arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plan import targets

GIB = 1 << 30
VOCABULARY = 128256
HEAD = 128
KEY_VALUE_HEADS = 8
SHARED = (
    "hardware=h100",
    "mesh.axes={batch:8,model:8}",
    "layout=fsdp_megatron",
    "engine=jax",
    "engine.precision=bfloat16",
    "optimizer=adamw",
    "task=language_model",
    f"task.vocabulary={VOCABULARY}",
    "task.sample.prompt=null",
    "dataset=synthetic",
    "dataset.length=8192",
    "dataset.batch_size=16",
)
GPT = (
    "model=gpt",
    "model.positions=rotary",
    "model.norm=rms",
    "model.activation=swiglu",
    "model.bias=false",
    "model.scan=true",
    "model.remat=full",
    f"model.key_value_heads={KEY_VALUE_HEADS}",
    "model.dim=8192",
    "model.depth=80",
    "model.heads=64",
    "model.feedforward=28672",
)


# The wheels of CUDA are 4.9 GB on the disk, so the file has no tests that run at every state of the code.
@pytest.mark.nightly
def test_the_compiler_of_gpus_plans_a_llama_of_70b_on_64_gpus_that_are_not_here(tmp_path: Path) -> None:
    compiled = targets.planned(targets.GPU, tmp_path / "run", *SHARED, *GPT)
    memory = compiled.memory()
    # Kernels and tables are over all 64 devices, and the scales of norms over the 8 of `batch`.
    dim, depth, hidden = 8192, 80, 28672
    attention = 2 * dim * dim + 2 * dim * KEY_VALUE_HEADS * HEAD
    kernels = depth * (attention + 3 * dim * hidden) + 2 * VOCABULARY * dim
    weights = 4 * kernels // 64 + 4 * (2 * depth + 1) * dim // 8
    assert memory["weights"] == weights
    # AdamW has two moments, float32 too.
    assert memory["optimizer state"] == 2 * weights
    assert compiled.plan["forecast"]["depth"] == "target"
    # On 26 November 2026 it took 18 CPU seconds.
    assert compiled.cpu_seconds < 60
    assert compiled.peak_bytes < 2 * GIB


# On 27 November 2026 it took 44 CPU seconds.
_MOST_TPU_SECONDS = 90
TINY_GPT = (
    "hardware=v5e",
    "mesh.axes={batch:4,model:4}",
    "layout=fsdp_megatron",
    "engine=jax",
    "engine.precision=bfloat16",
    "optimizer=adamw",
    "task=language_model",
    "task.vocabulary=4096",
    "task.sample.prompt=null",
    "dataset=synthetic",
    "dataset.length=512",
    "dataset.batch_size=16",
    "model=gpt",
    "model.dim=512",
    "model.depth=2",
    "model.heads=8",
    "model.bias=false",
    "model.norm=rms",
    "model.positions=rotary",
    "model.scan=true",
    "model.remat=full",
)


@pytest.mark.nightly
def test_the_compiler_of_tpus_plans_a_gpt_on_16_tpus_that_are_not_here(tmp_path: Path) -> None:
    compiled = targets.planned(targets.TPU, tmp_path / "run", *TINY_GPT)
    memory = compiled.memory()
    dim, depth, vocabulary = 512, 2, 4096
    # Four kernels of attention and two of the feed-forward part, whose hidden width is 4 * dim, in each block; a table
    # of embeddings and a head. All are split over the 16 devices, the scales of a block's norms over the 4 of `batch`.
    kernels = depth * (4 + 2 * 4) * dim * dim + 2 * vocabulary * dim
    block_scales = 2 * depth * dim
    assert memory["weights"] == 4 * kernels // 16 + 4 * block_scales // 4 + 4 * dim
    assert memory["optimizer state"] == 2 * memory["weights"]
    assert compiled.plan["forecast"]["depth"] == "target"
    assert memory["temporaries"] > 0
    assert compiled.cpu_seconds < _MOST_TPU_SECONDS
    assert compiled.peak_bytes < 2 * GIB
