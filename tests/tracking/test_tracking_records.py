import math

import pytest

from runner.tracking.records import Artifact, Ending, Point, Tag, clean_key, clean_params, from_json, to_json


@pytest.mark.parametrize(
    "record",
    [
        Point("train/loss", 0.1, 17, 3),
        Tag("note", 'a "quoted"\nline'),
        Artifact("/x/curves.png", ""),
        Ending("KILLED", 18),
    ],
)
def test_a_record_survives_a_line_of_json(record):
    line = to_json(record)
    assert "\n" not in line
    assert from_json(line) == record


@pytest.mark.parametrize("line", ["{}", '{"kind": "point"}', '{"kind": "no such"}', "[1]", "not json"])
def test_a_line_that_is_no_record_is_refused(line):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own error is one too
        from_json(line)


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        ("optimizer.learning_rate", "optimizer.learning_rate"),
        ("train/loss", "train/loss"),
        ("rules[0]=x", "rules_0__x"),
        ("../up//down/", "_/up/down"),
        ("/", "_"),
        ("wärme", "w_rme"),
    ],
)
def test_characters_that_mlflow_refuses_become_underscores(key, stored):
    assert clean_key(key) == stored


def test_params_are_written_as_they_would_be_typed():
    params = {
        "none": None,
        "yes": True,
        "rate": 1e-4,
        "list": [1, None],
        "map": {"batch": 2},
        "text": "x",
        "inf": math.inf,
        "long": "x" * 7000,
    }
    assert clean_params(params) == {
        "none": "null",
        "yes": "true",
        "rate": "0.0001",
        "list": "[1, null]",
        "map": '{"batch": 2}',
        "text": "x",
        "inf": ".inf",
        "long": "x" * 6000,
    }
