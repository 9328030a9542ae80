"""Plans of attention that is not fused: its scores are in memory while a block is computed again."""

from pathlib import Path

import pytest

from tests.plan import cases

GIB = 1 << 30
# One row of 8,192 tokens and 32 heads per device: float32 scores of a block have 8 GiB, weights in bfloat16 4 GiB.
CASE = (
    *("engine=jax", "engine.precision=bfloat16", "model=gpt", "model.dim=1024", "model.depth=2", "model.heads=32"),
    *("model.remat=full", "task=language_model", "task.vocabulary=256", "dataset=synthetic", "dataset.length=8192"),
    *("mesh.axes={batch:8}", "layout=fsdp", "dataset.batch_size=8", "plan.compiler=arithmetic"),
)
SCORES = 12 * GIB


def peak(folder: Path, *arguments: str) -> int:
    plan = cases.planned(folder, *CASE, *arguments)
    return sum(part["bytes"] for part in plan["forecast"]["memory"])


def test_a_tpu_holds_the_scores_of_the_block_that_is_computed_again(tmp_path: Path) -> None:
    # By libtpu 0.0.42 it is 12.3 GiB. Two percent cover the figure's three digits and the small rest of the step.
    assert peak(tmp_path / "run", "hardware=v5e") == pytest.approx(12.3 * GIB, rel=0.02)


@pytest.mark.parametrize(
    ("words", "scores"),
    [
        # cuDNN's kernel holds no scores.
        ((), 0),
        # Heads of more than 128 numbers are computed by plain attention, which GPUs hold twice.
        (("model.heads=4",), 2 * SCORES // 8),
    ],
)
def test_a_gpu_holds_scores_only_where_attention_is_not_fused(
    tmp_path: Path, words: tuple[str, ...], scores: int
) -> None:
    measured = peak(tmp_path / "run", "hardware=h100", *words)
    # The rest of the step has less than half of a GiB.
    assert scores <= measured < scores + GIB // 2
