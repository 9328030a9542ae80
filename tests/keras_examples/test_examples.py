"""Each example's config is valid; the page shows what the steps of an example ended with."""

import json
import shutil
from pathlib import Path

import pytest

from runner.checks.composed import convert
from runner.config.compose import compose
from tests.keras_examples import page, spec
from tests.keras_examples.__main__ import PAGE, RESULTS, commands, last_line, measure, selected
from tests.keras_examples.spec import Example, Spec, examples
from tests.nightly import nightly_except

EXAMPLES = [example for example in examples() if not example.spec.needs]


@pytest.mark.parametrize("example", nightly_except(EXAMPLES[::5], EXAMPLES), ids=lambda example: example.path)
def test_the_config_of_each_example_is_valid(example: Example) -> None:
    convert(compose([*example.overrides(), "engine=jax", "layout=auto", "mesh=batch4_model2"]))


def test_models_that_rescale_bytes_on_keras_io_rescale_them_here() -> None:
    for name in ("cct", "convmixer", "image_classification_from_scratch", "mobilevit"):
        source = (spec.FOLDER / "vision" / f"{name}.py").read_text()
        assert "layers.Rescaling(1.0 / 255)(image)" in source, name
        assert "photos(" in source, name


def test_each_step_has_a_command() -> None:
    assert list(commands(EXAMPLES[0], "jax", Path("folder"))) == page.STEPS


def test_the_page_is_that_of_the_record() -> None:
    assert PAGE.read_text() == page.text(examples(), json.loads(RESULTS.read_text()))


def test_the_record_is_that_of_the_present_files() -> None:
    # Examples without a result are not in it, and the page says so.
    digests = {example.path: example.digest() for example in EXAMPLES}
    record = json.loads(RESULTS.read_text())
    assert record
    stale = [name for name, entry in record.items() if entry["digest"] != digests.get(name)]
    assert stale == [], "python -m tests.keras_examples --write drops them"


def test_a_digest_depends_on_the_modules_that_an_example_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(spec.FOLDER, copy)
    monkeypatch.setattr(spec, "FOLDER", copy)
    example = selected(["vision/mnist_convnet"])[0]
    before = example.digest()
    with (copy / "vision" / "mnist_convnet.py").open("a") as file:
        file.write("# a comment\n")
    assert example.digest() == before
    with (copy / "data.py").open("a") as file:
        file.write("COUNT = 1\n")
    assert example.digest() != before


def test_a_verdict_is_the_first_step_that_failed_and_what_is_lost() -> None:
    ended = dict.fromkeys(page.STEPS, "ok")
    example = selected(["vision/mnist_convnet"])[0]
    assert page.verdict(example, "jax", ended) == "as is"
    assert page.verdict(example, "jax", ended | {"train": "exit code 2: x"}) == "no: train: exit code 2: x"
    assert page.verdict(example, "jax", {}) == page.outcome(example, "jax", {}) == "not run"
    lossy = Example("vision", "mnist_convnet", Spec("One", lost=["a metric"]))
    assert page.verdict(lossy, "jax", ended) == "without a metric"
    assert page.outcome(lossy, "jax", ended) == "every step, something lost"
    assert not page.passes(lossy, "jax", ended)
    missing = Example("vision", "mnist_convnet", Spec("One", needs="two outputs"))
    assert page.verdict(missing, "jax", {}) == "not yet: needs two outputs"
    assert page.outcome(missing, "jax", {}) == "does not work"
    assert not page.passes(missing, "jax", {})


def test_lines_count_the_step_and_what_it_uses_but_not_its_models() -> None:
    assert selected(["vision/mnist_convnet"])[0].lines() == 0
    # loss and psnr, of two lines each
    assert selected(["vision/super_resolution_sub_pixel"])[0].lines() == 4
    # A step: three methods, and the two functions that it imports, but not `build`
    step = selected(["rl/actor_critic"])[0]
    assert step.lines() == 31


def test_examples_are_selected_by_name_and_category() -> None:
    assert [example.path for example in selected(["vision/mnist_convnet"])] == ["vision/mnist_convnet"]
    assert {example.category for example in selected(["nlp"])} == {"nlp"}
    with pytest.raises(ValueError, match="no such example or category: visoin"):
        selected(["visoin"])


def test_the_last_error_says_why_a_command_failed() -> None:
    assert last_line("a\nb", "error: one\nerror: two\nmore") == "error: two"
    assert last_line("a\nnot  verified", "") == "not verified"


def _ended(example: Example) -> dict[str, str]:
    ended: dict[str, str] = json.loads(RESULTS.read_text()).get(example.path, {}).get("engines", {}).get("jax", {})
    return ended


PASSING = [example for example in EXAMPLES if page.passes(example, "jax", _ended(example))]


@pytest.mark.nightly
@pytest.mark.parametrize("example", PASSING, ids=lambda example: example.path)
def test_an_example_equals_one_device(example: Example, tmp_path: Path) -> None:
    """Every tenth does all that the page measures; the others are verified, which trains too."""
    only = ["verify"] if PASSING.index(example) % 10 else []
    ended = measure(example, "jax", tmp_path, 600, only=only, passed={})
    assert len(ended) == (2 if only else len(page.STEPS))
    assert set(ended.values()) == {"ok"}
