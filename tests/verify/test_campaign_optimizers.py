"""The real command verifies optimizers of Keras and Optax on two axes; `tests.campaign` has AdamW's groups."""

from pathlib import Path

import pytest

from tests.verify.test_verify import command, result

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

_GROUPS = "optimizer.groups=[{match:biases_and_norms,decay:false},{match:'d1/.*',rate:0.1}]"
_SHORT = ["mesh=batch4_model2", "model.hidden=[16]", "dataset.batch_size=32", "tracking=none", "verify.steps=4"]
_CASES = {
    "lion": [
        *("optimizer=keras", "optimizer.class_name=Lion", "+optimizer.weight_decay=1.0", _GROUPS),
        *("optimizer.schedule.name=linear", "optimizer.schedule.warmup_steps=2", "layout=fsdp_megatron"),
    ],
    # Keras's epsilon_1 of 1e-30 makes NaN of pixels that are always 0 (docs/bugs.md), in `fit` as well.
    "adafactor": [
        *("optimizer=keras", "optimizer.class_name=Adafactor", "+optimizer.epsilon_1=1e-10", "layout=fsdp_megatron")
    ],
    "optax": [
        *("optimizer=optax", "optimizer._target_=optax.adafactor", "+optimizer.min_dim_size_to_factor=8"),
        *("optimizer.ema.decay=0.9", "optimizer.groups=[{match:'d1/.*',rate:0.5}]", "layout=fsdp_megatron"),
    ],
}


@pytest.mark.parametrize("case", _CASES)
def test_an_optimizer_with_groups_and_a_schedule_is_verified(tmp_path: Path, case: str) -> None:
    done = command(tmp_path, "engine=jax", *_SHORT, *_CASES[case])
    assert "verified: 4 steps" in done.stdout
    checks = result(tmp_path)["checks"]
    # One step from generic weights. Training from the start leaves biases of 1e-10, which agree to a few last bits.
    at_points = [float(check["ratio"]) for check in checks if check["kind"] in ("point", "update")]
    assert max(at_points) < 0.5, "far from the tolerances"
