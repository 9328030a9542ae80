"""Each example's config is valid, and a mesh trains it as one device does."""

import os
import sys
from pathlib import Path

import pytest

from runner.config.compose import compose
from runner.plan.checks.run import convert
from tests import forks, stores
from tests.keras_examples import page
from tests.keras_examples.spec import Example, examples
from tests.nightly import nightly_except

EXAMPLES = [example for example in examples() if not example.needs]


def named(path: str) -> Example:
    return next(example for example in EXAMPLES if example.path == path)


@pytest.mark.parametrize("example", nightly_except(EXAMPLES[::5], EXAMPLES), ids=lambda example: example.path)
def test_the_config_of_each_example_is_valid(example: Example) -> None:
    convert(compose([*example.all_overrides(), "engine=jax", "layout=auto", "mesh=batch4_model2"]))


def test_the_page_is_that_of_the_examples() -> None:
    assert page.PAGE.read_text() == page.text(examples()), "python -m tests.keras_examples.page writes it"


def test_lines_count_the_step_and_what_it_uses_but_not_its_models() -> None:
    assert named("vision/mnist_convnet").lines() == 0
    # A loss of three lines, and psnr of two
    assert named("vision/mirnet").lines() == 5
    # A step: three methods, and the two functions that it imports, but not `build`
    assert named("rl/actor_critic").lines() == 31


@pytest.mark.nightly
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.path)
def test_an_example_equals_one_device(example: Example, tmp_path: Path) -> None:
    """Every tenth does all that a user does; the others are verified, which trains too."""
    config = [*example.all_overrides(), "engine=jax", "layout=auto"]
    store = f"tracking.uri=sqlite:///{tmp_path / 'mlflow.db'}"
    stores.store_in(tmp_path)
    commands = [["runner.verify", *config, f"mesh={mesh}", "verify.steps=4"] for mesh in ("batch8", "batch4_model2")]
    if EXAMPLES.index(example) % 10 == 0:
        commands += [["runner.plan", *config, "mesh=batch8"], ["runner", *config, store, "mesh=batch8"]]
        commands += [["runner.evaluate", store, "run=latest"]]
        commands += [["runner.export", store, "run=latest", f"export.folder={tmp_path / 'export'}"]]
    # Gradients of maxima over a whole dim are wrong in the code that compiles fastest.
    environment = os.environ | {"PYTHONPATH": str(forks.ROOT), "XLA_FLAGS": forks.RIGHT_MAXIMA}
    for command in commands:
        done = forks.run(
            [sys.executable, "-m", *command], library=forks.JAX, cwd=tmp_path, env=environment, timeout=600
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
