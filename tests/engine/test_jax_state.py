"""`engine.state`: what is held in which type. `tests/verify/test_jax.py` compares the training with one device."""

from typing import Any

import pytest

from runner.checkpoint import resume
from runner.engine.base import VariableInfo
from runner.errors import ConfigError
from runner.layout.paths import is_ema, is_slot
from tests import forks


@pytest.fixture(scope="module")
def found() -> Any:
    return forks.answer("-m", "tests.engine.state_worker", library="jax")


@pytest.mark.nightly
def test_statistics_and_averages_are_float32_in_every_state_and_frozen_weights_need_no_master(found: Any) -> None:
    for state, weight in (("bfloat16", "bfloat16"), ("master", "float32")):
        kinds = found[state]["kinds"]
        assert {kinds[f"norm/moving_{name}"] for name in ("mean", "variance")} == {"float32"}
        assert kinds["table/embeddings"] == "bfloat16"
        assert {kinds[f"{path}/kernel"] for path in ("held", "head")} == {weight}
        assert {kind for path, kind in kinds.items() if is_slot(path)} == {weight}
        assert {kind for path, kind in kinds.items() if is_ema(path)} == {"float32"}
    assert found["bfloat16"]["least"] >= 0.0, "the constraint is kept"


def test_gradients_of_a_token_that_comes_often_are_added_up_in_float32(found: Any) -> None:
    assert max(found["frequent"].values()) < 0.02, "bfloat16 sums of equal terms stand still at 256 of them"


class _Engine:
    """An engine as `resume.load` sees it, of one weight."""

    trainable = ("d1/kernel",)

    def __init__(self, **kinds: str) -> None:
        self._kinds = {path.replace("__", "/"): kind for path, kind in kinds.items()}
        self.loaded: object = None

    def variables(self) -> dict[str, VariableInfo]:
        return {path: VariableInfo((2,), kind, (None,), 8) for path, kind in self._kinds.items()}

    def load_state(self, state: object) -> None:
        self.loaded = state


class _Checkpoint(dict[str, str]):
    """A checkpoint as `resume.load` sees it: path -> dtype."""

    folder = "c"

    def shape(self, path: str) -> tuple[int, ...]:
        del path
        return (2,)

    def dtype(self, path: str) -> str:
        return self[path]


@pytest.mark.parametrize(
    ("held", "own", "refused"),
    [
        ({"d1/kernel": "float32", "d0/kernel": "float32"}, {"d1__kernel": "bfloat16", "d0__kernel": "bfloat16"}, True),
        ({"d1/kernel": "float32", "d0/kernel": "float32"}, {"d1__kernel": "float32", "d0__kernel": "bfloat16"}, False),
        (
            {"d1/kernel": "bfloat16", "d0/kernel": "bfloat16"},
            {"d1__kernel": "float32", "d0__kernel": "float32"},
            False,
        ),
    ],
)
def test_a_load_never_rounds_what_steps_change(held: dict[str, str], own: dict[str, str], *, refused: bool) -> None:
    engine, checkpoint = _Engine(**own), _Checkpoint(held)
    if not refused:
        resume.load(engine, checkpoint)  # type: ignore[arg-type]
        assert engine.loaded is checkpoint
        return
    with pytest.raises(
        ConfigError, match=r"engine\.state=bfloat16: would round d1/kernel, .* in float32; set engine\.state=master"
    ):
        resume.load(engine, checkpoint)  # type: ignore[arg-type]
