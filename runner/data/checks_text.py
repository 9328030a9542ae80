"""Checks between the keys of `dataset` that concern text; see `runner.data.checks`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from runner.config.fields import fix_for, path_problem
from runner.config.schema_data import DatasetConfig
from runner.config.values import changed
from runner.data import registry
from runner.errors import did_you_mean, invalid

BYTES = "bytes"

# As it is typed: the double quotes are for the shell, the single quotes for Hydra.
END_TOKEN = "\"dataset.end_token='<|endoftext|>'\""

# The value that null means.
LENGTH = 256

# Keys that have no effect without a tokenizer.
_KEYS_OF_TOKENS = ("end_token", "sequence_length", "documents")


def is_text(config: DatasetConfig) -> bool:
    """Returns whether the examples of a dataset are sequences of tokens."""
    tokens = registry.entry(config).tokens
    return tokens == "always" or (tokens == "tokenizer" and config.tokenizer is not None)


def check(config: DatasetConfig, *, recorded: bool = False) -> None:
    """Checks the keys of text."""
    if not is_text(config):
        for key in changed(config, _KEYS_OF_TOKENS):
            fix = f"set dataset.tokenizer=bytes too, or remove dataset.{key}"
            raise invalid(
                f"dataset.{key}",
                getattr(config, key),
                problem="needs text, which dataset.tokenizer selects",
                fix=fix,
            )
        return
    _check_tokenizer(config, recorded=recorded)
    # The library is looked for and not imported, because a config error must come before any slow import.
    if config.tokenizer != BYTES and importlib.util.find_spec("tokenizers") is None:
        raise invalid(
            "dataset.tokenizer",
            config.tokenizer,
            problem="needs the library tokenizers, which is not installed",
            fix="pip install tokenizers, or set dataset.tokenizer=bytes",
        )


def _check_tokenizer(config: DatasetConfig, *, recorded: bool) -> None:
    key = "dataset.tokenizer"
    tokenizer = config.tokenizer or ""
    if tokenizer == BYTES:
        return
    if tokenizer:
        problem = path_problem(tokenizer)
        if problem is not None:
            raise invalid(key, config.tokenizer, problem=problem, fix=fix_for(problem, f"set {key}=tokenizer.json"))
    # Only the suffix distinguishes a path from a misspelled kind, which gets a suggestion.
    is_file_name = tokenizer.endswith(".json")
    if is_file_name and (recorded or Path(tokenizer).expanduser().is_file()):
        return
    problem = f"must be {BYTES} or the path of a tokenizer.json"
    if is_file_name:
        problem = "the file does not exist"
    fix = did_you_mean(tokenizer, (BYTES,), f"set {key}=bytes")
    raise invalid(key, config.tokenizer, problem=problem, fix=fix)
