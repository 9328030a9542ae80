"""A key is declared in one place: check, message, reference and fuzzer follow from its field."""

from dataclasses import make_dataclass
from inspect import cleandoc
from typing import Any

import pytest

from runner.config import values
from runner.config.build import build
from runner.config.fields import choice, integer, number
from runner.config.schema_trainer import TrainerConfig
from runner.errors import ConfigError
from tests.campaign import fuzz_cases
from tests.docs import reference

DOCUMENTATION = f"""{cleandoc(TrainerConfig.__doc__ or "")}
  warm_batches: batches before the first timed one.
  pace: how fast to go.
  share: fraction of the time.
"""


@pytest.fixture
def extended() -> Any:
    """Returns the schema of `trainer` with three more keys."""
    return make_dataclass(
        "TrainerConfig",
        [
            ("warm_batches", int, integer(3, at_least=1, at_most=8, unit="batches")),
            ("pace", "str | None", choice(None, "slow", "fast")),
            ("share", float, number(0.5, above=0.0, below=1.0)),
        ],
        bases=(TrainerConfig,),
        namespace={"__doc__": DOCUMENTATION},
        frozen=True,
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"warm_batches": 9}, "trainer.warm_batches=9: must be from 1 to 8 batches; set trainer.warm_batches=3"),
        ({"warm_batches": "many"}, "trainer.warm_batches=many: must be an integer; set trainer.warm_batches=3"),
        ({"pace": "fats"}, "trainer.pace=fats: must be slow, fast or null; did you mean fast?"),
        (
            {"share": 0.99999999999},
            "trainer.share=0.99999999999: must be above 0 and below 1, but float32 rounds this value to 1; "
            "set trainer.share=0.5",
        ),
    ],
)
def test_an_invalid_value_of_a_new_key_is_named_with_a_fix(
    extended: Any, content: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        values.check(build(extended, content, "trainer"), "trainer")
    assert str(error.value) == message


def test_the_reference_has_a_row_for_each_new_key(extended: Any) -> None:
    rows = {key: (kind, meaning) for key, kind, meaning in reference.described(extended)}
    assert rows["warm_batches"] == ("integer, from 1 to 8 batches", "batches before the first timed one.")
    assert rows["pace"] == ("slow | fast, or null", "how fast to go.")
    assert rows["share"] == ("number, above 0 and below 1", "fraction of the time.")


def test_the_fuzzer_draws_the_bounds_and_choices_of_each_new_key(extended: Any) -> None:
    words = {key.name: key.words for key in fuzz_cases._keys(extended, "trainer.")}
    assert words["trainer.warm_batches"] == ("0", "1", "2", "7", "8", "9")
    assert words["trainer.pace"] == ("slow", "fast")
    assert {"0.0", "1.0"} <= set(words["trainer.share"])
