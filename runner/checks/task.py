"""Checks between task, dataset and model that the config alone can tell; each raises `ConfigError` with its fix."""

from __future__ import annotations

from runner.config.schema import RunConfig
from runner.config.schema_data import ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER
from runner.data import checks_text
from runner.errors import invalid
from runner.model import gpt_options
from runner.task import registry as tasks


def check(config: RunConfig) -> None:
    """Checks that a dataset has what its task takes, tokens or something else, and that the model gives it."""
    dataset = config.dataset
    task = config.task
    entry = tasks.entry(task)
    is_text = checks_text.is_text(dataset)
    if is_text and entry.predicts == "example":
        raise invalid(
            "task",
            task.name,
            problem=f"dataset={dataset.name} has a next token for each token, and nothing of a whole example",
            fix="set task=language_model",
        )
    if config.model.target == gpt_options.TARGET and entry.predicts == "example":
        data = "" if is_text else ", and dataset=text, dataset=shakespeare or dataset=pydoc"
        raise invalid(
            "task",
            task.name,
            problem="model=gpt gives logits for each token of a row, and nothing of a whole example",
            fix=f"set task=language_model{data}",
        )
    if entry.predicts != "token":
        return
    may_have_tokens = dataset.builder is None and dataset.name in (ARRAYS, CUSTOM)
    if not is_text and not may_have_tokens:
        of_tfds = dataset.builder is not None or dataset.name not in (DIGITS, IMAGE_FOLDER)
        own = "dataset.tokenizer=bytes where it is of text, else " if of_tfds else ""
        raise invalid(
            "task",
            task.name,
            problem=f"it takes sequences of tokens, and {dataset.builder or f'dataset={dataset.name}'} has none",
            fix=f"set {own}dataset=text, dataset=shakespeare or dataset=pydoc",
        )
    sample = entry.options(**task.options).sample if entry.samples_text else None
    length = dataset.sequence_length or checks_text.LENGTH
    if is_text and sample is not None and sample.tokens is not None and sample.tokens >= length:
        raise invalid(
            "task.sample.tokens",
            sample.tokens,
            problem=f"fewer than dataset.sequence_length={length}: a row holds the prompt too",
            fix=f"set task.sample.tokens={length // 2}",
        )
