"""Keys of text are refused where they can't work, or would be without effect, in one line that names the key."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.config import values
from runner.config.schema_data import DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.data import checks as checks_data
from runner.errors import ConfigError
from runner.plan.checks import run as checks
from tests.configs import with_keys
from tests.engine import cases


def check(config: DatasetConfig) -> None:
    values.check(config, "dataset")
    checks_data.check(config)


TEXT = {"name": "text", "path": "notes.txt", "tokenizer": "bytes"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("notes.txt", "given.json"):
        (tmp_path / file).write_text("{}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            TEXT | {"path": None},
            ["dataset.path=null", "a file, a folder of .txt, .jsonl, .parquet or .arrow files, or a glob"],
        ),
        (TEXT | {"path": "note.txt"}, ["dataset.path=note.txt", "does not exist", "did you mean notes.txt?"]),
        (
            TEXT | {"tokenizer": "~nobody_here/a.json"},
            ["dataset.tokenizer=~nobody_here/a.json", "use an absolute path"],
        ),
        (TEXT | {"tokenizer": "mine.json"}, ["dataset.tokenizer=mine.json", "the file does not exist"]),
        (TEXT | {"tokenizer": "bpe"}, ["dataset.tokenizer=bpe", "must be bytes or the path of a tokenizer.json"]),
        (
            TEXT | {"sequence_length": 2_000_000_000},
            ["dataset.sequence_length=2000000000", "from 1 to 1,048,576 tokens"],
        ),
        (TEXT | {"end_token": " "}, ["dataset.end_token=' '", "must not be blank"]),
        ({"name": "pydoc", "tokenizer": "bytes", "column": "body"}, ["dataset.column=body", "dataset=text"]),
        ({"name": "digits", "tokenizer": "bytes"}, ["dataset.tokenizer=bytes", "set dataset=text"]),
        ({"name": "imdb_reviews", "sequence_length": 8}, ["sequence_length=8", "set dataset=text"]),
    ],
)
def test_invalid_keys_of_text_are_named(keys: dict[str, object], words: list[str]) -> None:
    config = DatasetConfig(**keys)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as told:
        check(config)
    assert "\n" not in str(told.value)
    for word in words:
        assert word in str(told.value)


@pytest.mark.parametrize("word", ["run", "resume", "branch"])
def test_a_recorded_run_needs_no_file_of_its_tokenizer(word: str) -> None:
    config = cases.config({"batch": 1})
    config = with_keys(
        config, {"dataset": DatasetConfig(**TEXT | {"tokenizer": "gone.json"}), "task": TaskConfig("language_model")}
    )  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the file does not exist"):
        checks.check(config)
    checks.check(replace(config, **{word: "latest"}))


def test_a_tokenizer_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install tokenizers, or set dataset\.tokenizer=bytes"):
        checks_data.check(DatasetConfig(**TEXT | {"tokenizer": "given.json"}))  # type: ignore[arg-type]
    checks_data.check(DatasetConfig(**TEXT))  # type: ignore[arg-type]
