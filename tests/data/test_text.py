import json
from pathlib import Path

import numpy as np
import pytest

from runner.config.schema_data import DatasetConfig
from runner.data.base import Dataset
from runner.data.loading import load
from runner.data.packing import PackedSequences
from runner.data.sources import text
from runner.data.sources.text import files, store
from runner.data.sources.text.files import PIECE
from runner.errors import ConfigError, DataError
from tests.data.conftest import loaded
from tests.data.texts import END, LINES, config, saved, written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


def text_of(data: Dataset, split: str) -> str:
    """All of a split's text, put together from its sequences."""
    source = getattr(data, split)
    arrays = source.read(np.arange(source.size))
    within = arrays["segments"] > 0
    return data.vocabulary.decode(arrays["tokens"][within])


@pytest.mark.parametrize("kind", ["bytes", "end", "tokenizer"])
def test_every_document_of_a_folder_is_read_and_the_last_tenth_of_them_is_tested_on(tmp_path, folder, kind):
    keys = {"end": {"end_token": END}, "tokenizer": {"tokenizer": saved(tmp_path / "made.json")}}.get(kind, {})
    data = loaded(config(tmp_path, folder, **keys))
    # In the order of their paths: a.txt, below/b.jsonl, c.parquet, d.arrow.
    assert text_of(data, "train") == LINES[0] + "\r\n" + "".join(LINES[1:36])
    assert text_of(data, "test") == "".join(LINES[36:])
    assert (data.texts["train"].documents, data.texts["test"].documents) == (36, 4)
    assert data.selection["test"] == "the last tenth of the text"


def test_documents_end_where_segments_do_and_the_end_token_is_learnt(tmp_path, folder):
    data = load(config(tmp_path, folder, end_token=END, sequence_length=64))
    arrays = data.train.read(np.arange(data.train.size))
    ends = arrays["tokens"] == 256
    assert ends.sum() == 36
    assert not arrays["label_weight"][ends].any()
    assert ((arrays["label"] == 256) & (arrays["label_weight"] > 0)).sum() == 36


def test_splits_of_a_folder_are_used_and_a_glob_is_one_split(tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name} {name} and more of it" * 3)
    data = load(config(tmp_path, tmp_path))
    assert data.validation is not None
    assert [text_of(data, one)[:5] for one in ("train", "validation", "test")] == ["train", "val v", "test "]
    joined = loaded(config(tmp_path, tmp_path / "t*.txt"))
    assert joined.texts["train"].documents == 2
    assert text_of(joined, "train").startswith("test ")


def test_a_single_document_is_tested_on_its_last_tenth(tmp_path):
    path = tmp_path / "one.md"  # a file that is named may be called anything
    text = "".join(f"line {number}\n" for number in range(100))
    path.write_text(text)
    data = load(config(tmp_path, path))
    train, test = text_of(data, "train"), text_of(data, "test")
    assert train + test == text
    assert len(test) == round(len(text) / 10)


@pytest.mark.parametrize("lengths", [[20], [30, 0, 40], [10] * 9, [0, 0, 200], [10] * 10, [3] * 25])
def test_a_cut_loses_nothing(tmp_path, lengths):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * one}) + "\n" for one in lengths))
    data = load(config(tmp_path, path))
    train, test = data.texts["train"], data.texts["test"]
    assert train.tokens + test.tokens == sum(lengths)
    is_within = train.tokens % (lengths[0] or 200) > 0
    assert train.documents + test.documents == len([one for one in lengths if one]) + is_within


def test_pieces_give_the_tokens_of_the_whole(tmp_path):
    text = "".join(f"word {number % 97}\n\n    indented {number}\nnext\n" for number in range(9000))
    path = tmp_path / "long.txt"
    path.write_text(text)
    parts = list(files.pieces([path], "text"))
    assert "".join(part for part, _ in parts) == text
    assert [ends for _, ends in parts] == [False] * (len(parts) - 1) + [True]
    assert max(len(part) for part, _ in parts) <= PIECE
    data = load(config(tmp_path, path, tokenizer=saved(tmp_path / "made.json", 320)))
    vocabulary = data.vocabulary
    assert (
        np.concatenate(vocabulary.encode_pieces([part for part, _ in parts])).tolist()
        == vocabulary.encode(text).tolist()
    )


def test_a_text_is_encoded_once(tmp_path, folder, monkeypatch):
    first = load(config(tmp_path, folder))
    monkeypatch.setattr(store, "_write", None)
    assert loaded(config(tmp_path, folder, documents="joined")).digest != first.digest
    assert load(config(tmp_path, folder)).digest == first.digest


@pytest.mark.parametrize(("module", "name"), [(files, "pieces"), (text, "of_files")])
def test_nothing_is_stored_of_a_file_that_changes_while_it_is_read(tmp_path, folder, monkeypatch, module, name):
    read = getattr(module, name)

    def changed(*given):
        found = read(*given)
        (folder / "a.txt").write_text("other")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(module, name, changed)
        with pytest.raises(DataError, match="a file was changed while it was read; start again"):
            load(config(tmp_path, folder))
    assert not [*(tmp_path / "data" / ".text").glob("tokens/*/meta.json")]
    assert text_of(load(config(tmp_path, folder)), "train").startswith("other")


def test_large_splits_stay_on_disk_and_give_the_same(tmp_path, folder, monkeypatch):
    held = load(config(tmp_path, folder))
    monkeypatch.setattr("runner.data.packing.RAM_BYTES", 1)
    mapped = load(config(tmp_path, folder, train="train[2:]+test", holdout=0.2))
    whole = load(config(tmp_path, folder))
    assert isinstance(whole.train, PackedSequences)
    assert isinstance(whole.train.stream, np.memmap)
    rows = np.array([4, 0, 2, 4])
    for name, array in whole.train.read(rows).items():
        np.testing.assert_array_equal(array, held.train.read(rows)[name])
    assert mapped.validation is not None
    assert mapped.train.size + mapped.validation.size == held.train.size - 2 + held.test.size


def test_a_tokenizer_that_has_changed_is_rejected(tmp_path, folder):
    path = tmp_path / "tokenizer.json"
    given = load(config(tmp_path, folder, tokenizer=saved(path)))
    assert load(config(tmp_path, folder, tokenizer=str(path)), encoding=given.encoding).digest == given.digest
    path.unlink()  # a run has it, and outlives the file
    assert load(config(tmp_path, folder, tokenizer=str(path)), encoding=given.encoding).digest == given.digest
    for keys, words in [
        ({"tokenizer": saved(path, 280)}, "sha256"),
        ({"tokenizer": "bytes"}, "a tokenizer of 300 tokens"),
        ({"tokenizer": str(path), "end_token": END}, "null"),
    ]:
        with pytest.raises(ConfigError, match=words) as told:
            load(config(tmp_path, folder, **keys), encoding=given.encoding)
        assert "differs from what the run was trained with" in str(told.value)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_mark_of_the_byte_order_is_no_text(tmp_path, name):
    texts = [f"{number} and more of it\n" for number in range(20)]
    content = "".join(texts) if name == "a.txt" else "".join(json.dumps({"text": one}) + "\n" for one in texts)
    (tmp_path / name).write_text(content, "utf-8-sig")
    data = load(config(tmp_path, tmp_path / name))
    assert text_of(data, "train") + text_of(data, "test") == "".join(texts)


def test_corrupted_files_in_the_cache_are_written_again(tmp_path, folder):
    first = load(config(tmp_path, folder))
    wanted = text_of(first, "train")
    (stream,) = (tmp_path / "data").glob(".text/tokens/*/train.tokens")
    stream.write_bytes(b"short")
    assert text_of(load(config(tmp_path, folder)), "train") == wanted


def test_pydoc_is_there_and_its_topics_are_kept_apart(tmp_path):
    from pydoc_data.topics import topics

    data = load(DatasetConfig(name="pydoc", tokenizer="bytes", sequence_length=128, data_dir=str(tmp_path)))
    assert sum(one.documents for one in data.texts.values()) == len([one for one in topics.values() if one])
    assert text_of(data, "train").startswith(topics[min(topics)])
