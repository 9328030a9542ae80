"""What a config comes to on its dataset, and what is refused of it then."""

from typing import Any

import pytest

from runner.config.schema import DatasetConfig, LayoutConfig, MeshConfig, RunConfig, TrainerConfig
from runner.engine import lengths
from runner.errors import ConfigError
from tests.configs import with_keys


def config(devices: int = 4, trainer: dict[str, Any] | None = None, **dataset: Any) -> RunConfig:
    layout = LayoutConfig(inputs={"image": ["batch", None, None, None]})
    return RunConfig(
        mesh=MeshConfig({"batch": devices}),
        layout=layout,
        trainer=TrainerConfig(**(trainer or {})),
        dataset=DatasetConfig(**dataset),
    )


@pytest.mark.parametrize(
    ("given", "batch", "examples", "expected"),
    [
        *((None, 128, 10_000, 1000), (None, 1200, 10_000, 1200), (None, 12, 357, 357), (None, 8, 2, 2)),
        *((60, 12, 10_000, 60), (64, 8, 357, 64), (2_000_000, 128, 357, 357)),
    ],
)
def test_an_evaluation_batch_is_no_larger_than_its_split_and_is_padded_for_the_mesh(
    given: int | None, batch: int, examples: int, expected: int
) -> None:
    made = config(batch_size=batch, eval_batch_size=given)
    assert lengths.eval_batch(made.dataset, made.task, examples) == expected
    for axis in (1, 3, 4, 12):
        rows = lengths.padded_rows(expected, axis)
        assert rows % axis == 0
        assert 0 <= rows - expected < axis


@pytest.mark.parametrize(("remainder", "most"), [("drop", 96), ("pad", 100)])
def test_a_batch_larger_than_the_split_is_rejected_with_the_largest_valid_one(remainder: str, most: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"dataset\.batch_size=2000000: must be at most {most}: split train has 99 exam"
    ):
        lengths.run_length(config(batch_size=2_000_000, remainder=remainder), 99, 0)
    assert lengths.run_length(config(batch_size=most, remainder=remainder), 99, 0).epoch == 1


def test_more_steps_than_int32_can_count_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.epochs=2147483647: must be at most 214748364 with 10 steps"):
        lengths.run_length(config(trainer={"epochs": 2**31 - 1}, batch_size=4), 40, 0)


def length(trainer: dict[str, Any], tokens: int = 0) -> lengths.RunLength:
    """Returns the length of a run on 40 examples, ten steps of four."""
    return lengths.run_length(config(trainer={"epochs": None} | trainer, batch_size=4), 40, tokens)


@pytest.mark.parametrize(
    ("trainer", "tokens", "total", "ends"),
    [
        ({"epochs": 2}, 0, 20, [10, 20]),
        ({"epochs": 2, "evaluate_every_steps": 8}, 0, 20, [8, 16, 20]),
        ({"steps": 25}, 0, 25, [10, 20, 25]),
        ({"steps": 25, "evaluate_every_steps": 8}, 0, 25, [8, 16, 24, 25]),
        ({"steps": 25, "evaluate_every_steps": 12}, 0, 25, [12, 24, 25]),
        ({"steps": 5}, 0, 5, [5]),
        ({"tokens": 28 * 7}, 7, 7, [7]),
        ({"tokens": 28 * 7 + 1, "evaluate_every_steps": 4}, 7, 8, [4, 8]),
    ],
)
def test_a_run_has_the_length_of_its_key_and_ends_periods_at_multiples(
    trainer: dict[str, Any], tokens: int, total: int, ends: list[int]
) -> None:
    made = length(trainer, tokens)
    assert (made.total, made.epoch) == (total, 10)
    assert list(made.ends(0)) == ends
    for step in range(total):
        assert list(made.ends(step)) == [end for end in ends if end > step], "wherever a run was interrupted"
    assert [step for step in range(total + 1) if made.is_end(step)] == ends
    assert [made.start(end) for end in ends] == [0, *ends[:-1]]


def test_evaluations_are_after_so_many_epochs_or_steps_and_at_the_end() -> None:
    epochs = length({"epochs": 5, "evaluate_every": 2})
    assert [end for end in epochs.ends(0) if epochs.is_evaluated(end)] == [20, 40, 50]
    steps = length({"steps": 25, "evaluate_every": 2})
    assert [end for end in steps.ends(0) if steps.is_evaluated(end)] == [20, 25]
    inside = length({"steps": 25, "evaluate_every_steps": 8})
    assert all(inside.is_evaluated(end) for end in inside.ends(0))


def test_the_length_in_tokens_is_rejected_for_data_without_tokens_and_beyond_int32_steps() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.tokens=99: the examples of this dataset are not tokens to task="):
        length({"tokens": 99})
    largest = 28 * (2**31 - 1)
    assert length({"tokens": largest}, 7).total == 2**31 - 1
    with pytest.raises(ConfigError, match=rf"must be at most {largest} with 28 tokens per step: steps are counted in"):
        length({"tokens": largest + 1}, 7)


@pytest.mark.parametrize(
    ("trainer", "done", "fix"),
    [
        ({"epochs": 2}, 20, "trainer.epochs=3"),
        ({"epochs": 2}, 45, "trainer.epochs=5"),
        ({"steps": 25}, 25, "trainer.steps=26"),
        ({"steps": 25}, 40, "trainer.steps=41"),
        ({"tokens": 70}, 3, "trainer.tokens=112"),
    ],
)
def test_the_fix_for_a_finished_run_trains_longer(trainer: dict[str, Any], done: int, fix: str) -> None:
    tokens = 7 if "tokens" in trainer else 0
    assert length(trainer, tokens).fix_for_more(done) == f"set {fix} or more"
    key, _, value = fix.removeprefix("trainer.").partition("=")
    longer = length({key: int(value)}, tokens)
    assert list(longer.ends(done))[:1] == [longer.total], "by one epoch or step"


def test_a_call_has_no_more_steps_than_are_between_evaluations() -> None:
    made = config(trainer={"steps_per_call": 99, "evaluate_every_steps": 3}, batch_size=4)
    assert lengths.steps_per_call(made.dataset, made.trainer, 40) == 3
    made = with_keys(made, {"trainer.evaluate_every_steps": None, "trainer.steps": 7})
    assert lengths.steps_per_call(made.dataset, made.trainer, 40) == 7
    made = with_keys(made, {"trainer.steps": 70})
    assert lengths.steps_per_call(made.dataset, made.trainer, 40) == 10, "an epoch's"
