"""Classes per token that are given to a language model: the error says which task learns them."""

from __future__ import annotations

import numpy as np
import pytest

from runner.config.schema_task import TaskConfig
from runner.data.base import ArraySource, ArraySpec
from runner.errors import ConfigError
from runner.task.registry import make_task
from tests.task.cases import config


def tagged(tags: int) -> tuple[dict[str, ArraySpec], ArraySource]:
    """Returns rows of 60 tokens, each with its own tag."""
    rng = np.random.default_rng(0)
    arrays = {"tokens": rng.integers(0, 60, (50, 8)).astype(np.int32)}
    arrays["tags"] = arrays["tokens"] % tags
    specs = {name: ArraySpec((8,), "int32") for name in arrays}
    return specs, ArraySource(arrays, specs)


@pytest.mark.parametrize(
    "made",
    [
        config("language_model", ["tags"], vocabulary=10),
        config("language_model", ["tags"], vocabulary=8),
        config("classification", ["tags"]),
        config("multilabel", ["tags"]),
    ],
    ids=["as_tokens", "too_few", "as_classes", "as_labels"],
)
def test_a_class_per_token_is_told_how_it_is_learned(made: TaskConfig) -> None:
    specs, train = tagged(10)
    with pytest.raises(ConfigError) as refused:
        make_task(made, specs, train)
    assert "set task=positions task.target=tags task.classes=10" in str(refused.value)
    assert "task.vocabulary=60" not in str(refused.value)


@pytest.mark.parametrize("shift", [0, 1], ids=["masked", "next"])
def test_a_vocabulary_that_is_too_small_for_its_own_tokens_is_told_its_size(shift: int) -> None:
    specs, train = tagged(10)
    tokens = train.arrays["tokens"]
    labels = np.roll(tokens, -shift, axis=1)
    source = ArraySource({"tokens": tokens, "tags": labels}, specs)
    problem = r"tokens must be from 0 to 9, but the train split has 59; set task\.vocabulary=60$"
    with pytest.raises(ConfigError, match=problem):
        make_task(config("language_model", ["tags"], vocabulary=10), specs, source)
