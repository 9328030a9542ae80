"""Text that can't be read, split or encoded is an error in one line, with its place or a fix."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from runner.data.loading import load
from runner.errors import ConfigError, DataError
from tests.data.texts import END, LINES, config, tokenizer, written

UNABLE = {
    "words": models.WordLevel({"a": 0, "b": 1}),
    "pieces": models.WordPiece({"a": 0, "b": 1}),
    "unigram": models.Unigram([("a", 0.0), ("b", -1.0)]),
    "bpe": models.BPE({"x": 0, "y": 1}, []),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        # What is called test is not trained on where nothing is called train.
        (["test/a.txt", "validation/b.txt", "c/d.txt"], "has the splits test, validation, but no split train; name"),
        (["test.txt", "a.txt"], "has the splits test, but no split train; name"),
        (["train/a.txt", "test.txt"], "train is read from folders, but test is not"),
        (["train.txt", "test/a.txt", "b.txt"], "train is read from files"),
        (["train.txt", "data/val-00000-of-00001.jsonl"], "val is not"),
    ],
)
def test_splits_without_train_or_in_another_form_than_it_are_an_error(tmp_path, names, words):
    root = tmp_path / "corpus"
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("some text")
    with pytest.raises(ConfigError, match=rf"dataset.path=.*corpus: .*{words}"):
        load(config(tmp_path, root))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"one\ntwo \xff\n", r"a.txt is not UTF-8 \(byte 0xff: invalid start byte"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n', r"a.jsonl is not UTF-8 \(byte 0xff"),
        (
            "a.jsonl",
            b'{"text": ' + b"[" * 200_000,
            r"a.jsonl, line 1: invalid JSON \(too deeply nested\); a .jsonl file needs one object per line",
        ),
        ("a.jsonl", b'{"body": "x"}\n', r"there is no field 'text' .the fields: body.; set dataset.column"),
        ("a.jsonl", b'{"text": 3}\n', r"'text' must be a string, not int"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"half a character"),
        ("a.parquet", b"PAR1", r"a.parquet can't be read"),
        ("a.txt", b"", r"there is no text to train on"),
    ],
)
def test_invalid_text_is_named_by_its_place(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as told:
        load(config(tmp_path, tmp_path / name))
    assert "\n" not in str(told.value)
    is_stored = bool(list((tmp_path / "data").glob(".text/tokens/*/meta.json")))
    assert is_stored == ("there is no text" in words)  # nothing is left of what could not be read


def test_a_parquet_without_the_column_or_with_a_missing_row_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"body": ["x", None]}), path)
    with pytest.raises(DataError, match="there is no column 'text' \\(the columns: body\\)"):
        load(config(tmp_path, path))
    with pytest.raises(DataError, match="body: row 2 is missing"):
        load(config(tmp_path, path, column="body"))


@pytest.mark.parametrize("kind", UNABLE)
def test_a_tokenizer_without_tokens_for_the_text_is_rejected(tmp_path, kind):
    made, path, text = Tokenizer(UNABLE[kind]), tmp_path / "tokenizer.json", tmp_path / "a.txt"
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(path))
    text.write_text("a b c\n" * 40)
    words = "the tokenizer drops it" if kind == "bpe" else r"tokenizer.json: can't encode the text \(.*(UNK|unk_id)"
    with pytest.raises((ConfigError, DataError), match=words):
        load(config(tmp_path, text, tokenizer=str(path)))


def test_an_empty_tokenizer_is_not_a_vocabulary_of_bytes(tmp_path, folder):
    path = tmp_path / "tokenizer.json"
    path.touch()
    with pytest.raises(ConfigError, match=r"dataset.tokenizer=.*must be a tokenizer.json .*the file is empty"):
        load(config(tmp_path, folder, tokenizer=str(path)))


def test_a_tokenizer_of_numbers_that_no_int32_holds_is_rejected(tmp_path, folder):
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0, "b": 1})).save(str(path))
    # Written into the file, because `save` takes half a minute for a number of this size.
    text = path.read_text()
    assert text.count('"b": 1') == 1
    path.write_text(text.replace('"b": 1', '"b": 3000000000'))
    with pytest.raises(ConfigError, match=r"must have at most 16,777,216 tokens, but its largest is 3,000,000,000"):
        load(config(tmp_path, folder, tokenizer=str(path)))


@pytest.mark.parametrize("end", ["a", "er", "Ġthe"])
def test_an_end_of_documents_that_is_a_piece_of_text_is_rejected(tmp_path, folder, end):
    path = tmp_path / "tokenizer.json"
    plain = tokenizer(LINES, 600)
    plain.add_special_tokens([END])
    plain.add_tokens(["|plain|"])
    plain.save(str(path))
    given = {"tokenizer": str(path)}
    for wanted in (end, "|plain|"):
        with pytest.raises(ConfigError, match=r"dataset.end_token=.*: must be one of the special tokens of"):
            load(config(tmp_path, folder, **given, end_token=wanted))
    assert load(config(tmp_path, folder, **given, end_token=END)).vocabulary.end == plain.token_to_id(END)


def test_sequences_that_are_longer_than_the_text_are_rejected(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a short text\n" * 4)
    with pytest.raises(ConfigError, match=r"dataset.sequence_length=64: split train of a.txt has \d+ tokens"):
        load(config(tmp_path, path, sequence_length=64, documents="joined"))


def test_documents_of_one_token_each_that_are_kept_apart_are_rejected(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x"}) + "\n" for _ in range(30)))
    with pytest.raises(ConfigError, match="documents=apart: split train has no label with weight 1"):
        load(config(tmp_path, path))
    assert load(config(tmp_path, path, end_token=END)).train.size > 0
    assert load(config(tmp_path, path, documents="joined", sequence_length=2)).train.size > 0


@pytest.mark.parametrize("documents", ["apart", "joined"])
def test_a_text_of_one_token_is_an_error_whatever_the_length(tmp_path, documents):
    (tmp_path / "a.txt").write_text("abcdef")
    with pytest.raises(DataError, match=r"split test of a.txt has 1 token, but needs .*; use more text"):
        load(config(tmp_path, tmp_path / "a.txt", documents=documents, sequence_length=2))


def test_a_cache_below_a_file_is_an_error_with_a_fix(tmp_path, folder):
    with pytest.raises(
        DataError,
        match=r"a.txt/.text/tokens can't be written \(Not a directory\); .*set dataset.data_dir to another folder",
    ):
        load(config(tmp_path, folder, data_dir=str(folder / "a.txt")))
