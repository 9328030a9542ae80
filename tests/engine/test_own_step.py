"""Custom steps: where their variables lie, how they resume, and what a class that breaks the rules is told."""

import numpy as np
import pytest

from tests import forks

pytestmark = pytest.mark.slow

SAYS = {
    "not built": "train_step raised ValueError: To call `stateless_apply`, Adam must be built",
    "listed": "attribute several holds models",
    "loses the optimizer": "with state a dict of net, slow, adam",
    "shape": "train_step returned other shapes or dtypes in state['net'] than it got",
    "metrics": "must return metrics loss, but returned loss, more",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    out = tmp_path_factory.mktemp("own_step") / "out.npz"
    forks.python("-m", "tests.engine.own_step_worker", str(out), library="jax")
    return dict(np.load(out))


def named(found: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}


def test_a_resumed_run_continues_bit_for_bit(found: dict[str, np.ndarray]) -> None:
    resumed = named(found, "resumed:")
    assert set(resumed) == set(named(found, "state:"))
    assert [path for path, value in resumed.items() if not np.array_equal(value, found[f"state:{path}"])] == []


def test_the_layout_places_weights_and_slots(found: dict[str, np.ndarray]) -> None:
    specs = {path: str(spec) for path, spec in named(found, "spec:").items()}
    for path in ("net/d1/kernel", "slow/d1/kernel", "optimizer/adam.velocities/net/d1/kernel"):
        assert specs[path] == "(None, 'model')"
    assert specs["optimizer/adam/learning_rate"] == "()"


@pytest.mark.parametrize("broken", SAYS)
def test_a_class_that_breaks_the_rules_is_told_in_one_line(found: dict[str, np.ndarray], broken: str) -> None:
    error = str(found[f"error:{broken}"])
    assert error.startswith("ConfigError: task._target_=tests.task.own_steps.Line: ")
    assert SAYS[broken] in error
    assert "\n" not in error


def test_a_model_that_does_not_take_the_tasks_inputs_is_not_exported(found: dict[str, np.ndarray]) -> None:
    error = str(found["error:other inputs"])
    assert error.startswith("ConfigError: task.exported=other: the model does not take the task's inputs, x (")
    assert "\n" not in error
