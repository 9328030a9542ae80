"""Visitors reach their goal from the front page: in three clicks at most, and few words."""

import re

import pytest

from tests.docs import pages

# Most clicks, and most words that a visitor reads, the table of the front page included.
CLICKS, WORDS = 3, 1500
_FRONT = "index"
# Visitor -> (page, heading of the section that is read; empty: the whole page) after the front page's first table.
PATHS = {
    "a Keras user with 8 GPUs and own data": [("gpus", ""), ("own_dataset", "")],
    "a user of model.fit with 4 devices": [("coming_from", "## Keras model.fit"), ("own_model", "## Images")],
    "a user who sweeps and compares in MLflow": [("sweeps", ""), ("mlflow", "## Links to a run")],
    "an engineer who asks whether 8 billion parameters fit": [
        ("choose_layout", "## Worked example: 8 billion parameters on 8 H100s"),
        ("memory", "## Read the plan"),
    ],
    "an engineer whose jobs are preempted": [
        ("checkpoints", "## Runs with a name"),
        ("several_processes", "## Restarts"),
        ("slurm", ""),
    ],
    "an engineer with Slurm who fine-tunes Gemma": [
        ("fine_tune", ""),
        ("keras_hub", "### The preset's tokenizer"),
        ("slurm", ""),
    ],
    "a researcher who wants to trust numbers": [("how_verify_works", "")],
    "a student of the DTensor tutorials": [("dtensor_tutorials", "")],
    "a contributor": [("CONTRIBUTING", ""), ("architecture", "## Where to add")],
}


def words(text: str) -> int:
    """Returns how many words a text has, without blocks, pictures and addresses."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len([word for word in text.replace("|", " ").split() if re.search(r"\w", word)])


def linked(text: str) -> set[str]:
    """Returns the pages that a text links to."""
    return set(re.findall(r"\]\((?:\.\./|docs/)?([\w-]+)\.md(?:#[\w-]+)?\)", text))


@pytest.mark.parametrize("visitor", PATHS)
def test_a_visitor_reaches_the_goal_in_few_clicks_and_words(visitor: str) -> None:
    front = pages.path_of(_FRONT).read_text().partition("\n## A bug that trains")[0]
    read, seen = words(front), linked(front)
    for page, heading in PATHS[visitor]:
        assert page in seen, f"no page on the way links to {page}"
        text = pages.section(page, heading)
        read += words(text)
        seen |= linked(text)
    assert len(PATHS[visitor]) <= CLICKS
    assert 100 < read <= WORDS
