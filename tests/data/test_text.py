from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from runner.config.errors import ConfigError, DataError
from runner.config.schema_data import DatasetConfig
from runner.data import load
from runner.data.base import Dataset, Encoding
from runner.data.packed import Packed
from runner.data.sources.text import files, scan, store
from runner.data.sources.text.files import PIECE, Text
from runner.data.sources.text.split import cut, parted, train_part
from tests.data.conftest import python

END = "<|endoftext|>"
LINES = [
    f"Ärger number {number}: to be, or not to be\n\n  that is {number} times the question.\n" for number in range(40)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty documents in four files of three kinds."""
    made = tmp_path / "notes"
    (made / "below").mkdir(parents=True)
    (made / "a.txt").write_bytes((LINES[0] + "\r\n").encode())
    (made / "below" / "b.jsonl").write_text("".join(json.dumps({"text": one}) + "\n\n" for one in LINES[1:20]))
    pa.parquet.write_table(pa.table({"n": range(20), "text": LINES[20:]}), made / "c.parquet")
    (made / "d.csv").write_text("not,text\n")
    (made / ".hidden.txt").write_text("hidden")
    return made


def config(tmp_path: Path, path: object, **keys: object) -> DatasetConfig:
    given = {"tokenizer": "bytes", "sequence_length": 32, "test": "test", "data_dir": str(tmp_path / "data")} | keys
    return DatasetConfig(name="text", path=str(path), **given)


def text_of(data: Dataset, split: str) -> str:
    """All of a split's text, put together from its sequences."""
    source = getattr(data, split)
    arrays = source.read(np.arange(source.size))
    within = arrays["segments"] > 0
    return data.vocabulary.decode(arrays["tokens"][within])


@pytest.mark.parametrize("keys", [{}, {"end_token": END}, {"tokenizer": "bpe", "vocabulary_size": 300}])
def test_every_document_of_a_folder_is_read_and_the_last_tenth_of_them_is_tested_on(tmp_path, folder, keys):
    data = load(config(tmp_path, folder, **keys))
    # In the order of their paths: a.txt, below/b.jsonl, c.parquet.
    assert text_of(data, "train") == LINES[0] + "\r\n" + "".join(LINES[1:36])
    assert text_of(data, "test") == "".join(LINES[36:])
    assert (data.texts["train"].documents, data.texts["test"].documents) == (36, 4)
    assert data.texts["test"].bytes == len("".join(LINES[36:]).encode())
    assert data.selection["test"] == "the last 4 of 40 documents"


def test_documents_end_where_segments_do_and_the_end_token_is_learnt(tmp_path, folder):
    data = load(config(tmp_path, folder, end_token=END, sequence_length=64))
    arrays = data.train.read(np.arange(data.train.size))
    ends = arrays["tokens"] == 256
    assert ends.sum() == 36
    assert not arrays["label_weight"][ends].any()
    assert ((arrays["label"] == 256) & (arrays["label_weight"] > 0)).sum() == 36


def test_joined_documents_have_tokens_and_labels_alone(tmp_path, folder):
    data = load(config(tmp_path, folder, documents="joined"))
    assert list(data.specs) == ["tokens", "label"]
    first = data.train.read(np.arange(1))
    assert data.vocabulary.decode(first["tokens"][0]) == (LINES[0])[:31]  # Ä takes two bytes


def test_splits_of_a_folder_are_taken_and_a_glob_is_one_split(tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name} {name} and more of it" * 3)
    data = load(config(tmp_path, tmp_path))
    assert data.validation is not None
    assert [text_of(data, one)[:5] for one in ("train", "validation", "test")] == ["train", "val v", "test "]
    joined = load(config(tmp_path, tmp_path / "t*.txt"))
    assert joined.texts["train"].documents == 2
    assert text_of(joined, "train").startswith("test ")


def test_shards_of_a_split_are_that_split(tmp_path):
    made = tmp_path / "hf" / "data"
    made.mkdir(parents=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002-0a1b2c3d", "test-00000-of-00001", "val-00000-of-00001"):
        pa.parquet.write_table(pa.table({"text": [f"{name} and more of it"]}), made / f"{name}.parquet")
    (made.parent / "train").mkdir()  # holds no text
    for path in (made, made.parent):
        data = load(config(tmp_path, path))
        assert text_of(data, "train").startswith("train-00000-of-00002 and more of it" + "train-00001")
        assert text_of(data, "validation").startswith("val-")
        assert text_of(data, "test").startswith("test-")


@pytest.mark.parametrize(
    "names", [["test/a.txt", "validation/b.txt", "c/d.txt"], ["test.txt", "a.txt"], ["data/val-00000-of-00001.jsonl"]]
)
def test_what_is_called_test_is_not_trained_on_where_nothing_is_called_train(tmp_path, names):
    root = tmp_path / "corpus"
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("some text")
    with pytest.raises(
        ConfigError, match=r"dataset.path=.*corpus is refused: a folder with a split train, and"
    ) as told:
        load(config(tmp_path, root))
    held = "test, validation" if len(names) > 2 else names[0][:4].replace("data", "val")
    assert f"this one has {held} alone; call" in str(told.value)


def test_a_single_document_is_tested_on_its_end_from_a_line_on(tmp_path):
    path = tmp_path / "one.md"  # a file that is named may be called anything
    text = "".join(f"line {number}\n" for number in range(100))
    path.write_text(text)
    data = load(config(tmp_path, path))
    train, test = text_of(data, "train"), text_of(data, "test")
    assert train + test == text
    assert test.startswith("line ")
    assert 0.05 < len(test) / len(text) <= 0.1
    assert data.selection["test"] == "the last tenth of the document"


@pytest.mark.parametrize(
    "lengths", [[1], [5], [3, 0, 4], [1, 1, 1], [10] * 9, [0, 0, 200], [10] * 10, [3] * 25, [4, 0], [0, 1, 0]]
)
def test_a_cut_loses_nothing(lengths):
    pieces = [(part, number == 1) for one in lengths for number, part in enumerate(_halves("x" * one))]
    at = cut(pieces)
    found = list(parted(pieces, at))
    assert sum(len(text) for _, text, _ in found) == sum(lengths)
    splits = [split for split, text, _ in found]
    assert all(text or ends for _, text, ends in found)
    assert "test" not in splits or any(text for split, text, _ in found if split == "test")
    assert splits == sorted(splits, reverse=True)  # train, then test
    assert [one[1:] for one in found if one[0] == "train"] == list(train_part(pieces, at))
    if sum(lengths) >= 5:
        assert "train" in splits


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def test_pieces_give_the_tokens_of_the_whole(tmp_path):
    text = "".join(f"word {number % 97}\n\n    indented {number}\nnext\n" for number in range(9000))
    path = tmp_path / "long.txt"
    path.write_text(text)
    parts = list(files.pieces([path], "text"))
    assert "".join(part for part, _ in parts) == text
    assert [ends for _, ends in parts] == [False] * (len(parts) - 1) + [True]
    assert max(len(part) for part, _ in parts) <= PIECE
    assert parts == list(files.pieces([Text("the same", text)], "text"))
    data = load(config(tmp_path, path, tokenizer="bpe", vocabulary_size=320))
    vocabulary = data.vocabulary
    assert (
        np.concatenate(vocabulary.encode_pieces([part for part, _ in parts])).tolist()
        == vocabulary.encode(text).tolist()
    )


def test_a_tokenizer_is_trained_once_on_train_alone_and_kept(tmp_path, folder, monkeypatch):
    keys = {"tokenizer": "bpe", "vocabulary_size": 300}
    first = load(config(tmp_path, folder, **keys))
    monkeypatch.setattr("runner.data.sources.text.bpe.trained", None)
    monkeypatch.setattr(store, "_write", None)
    again = load(config(tmp_path, folder, **keys, documents="joined"))
    assert again.vocabulary == first.vocabulary
    assert again.digest != first.digest
    assert load(config(tmp_path, folder, **keys)).digest == first.digest
    tokenizers = list((tmp_path / "data").glob(".text/tokenizers/*.json"))
    assert [one.read_text() for one in tokenizers] == [first.vocabulary.tokenizer]
    monkeypatch.undo()
    # What is tested on has no part in it.
    lines = [*LINES[:36], *(["entirely other words"] * 4)]
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": one}) + "\n" for one in lines))
    mine = tmp_path / "mine.jsonl"
    mine.write_text("".join(json.dumps({"text": one}) + "\n" for one in LINES))
    assert load(config(tmp_path, other, **keys)).vocabulary == load(config(tmp_path, mine, **keys)).vocabulary


def test_a_trained_tokenizer_that_a_power_cut_left_empty_is_trained_anew(tmp_path, folder):
    keys = {"tokenizer": "bpe", "vocabulary_size": 300}
    first = load(config(tmp_path, folder, **keys))
    (kept,) = (tmp_path / "data").glob(".text/tokenizers/*.json")
    kept.write_text("")
    assert load(config(tmp_path, folder, **keys)).vocabulary == first.vocabulary
    assert kept.read_text() == first.vocabulary.tokenizer


def test_a_changed_file_is_read_again(tmp_path, folder):
    first = load(config(tmp_path, folder))
    (folder / "a.txt").write_text("other")
    again = load(config(tmp_path, folder))
    assert again.digest != first.digest
    assert text_of(again, "train").startswith("other")


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
@pytest.mark.parametrize(("module", "name"), [(files, "pieces"), (scan, "digest")])
def test_nothing_is_stored_of_a_file_that_changes_while_it_is_read(
    tmp_path, folder, monkeypatch, module, name, tokenizer
):
    read = getattr(module, name)

    def changed(*given):
        found = read(*given)
        (folder / "a.txt").write_text("other")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(module, name, changed)
        with pytest.raises(DataError, match="a file was changed while it was read; start again"):
            load(config(tmp_path, folder, tokenizer=tokenizer))
    kept = tmp_path / "data" / ".text"
    assert not [*kept.glob("tokens/*/meta.json"), *kept.glob("tokenizers/*.json")]
    assert text_of(load(config(tmp_path, folder, tokenizer=tokenizer)), "train").startswith("other")


def test_large_splits_stay_on_disk_and_give_the_same(tmp_path, folder, monkeypatch):
    held = load(config(tmp_path, folder))
    monkeypatch.setattr("runner.data.packed._RAM_BYTES", 1)
    mapped = load(config(tmp_path, folder, train="train[2:]+test", holdout=0.2))
    whole = load(config(tmp_path, folder))
    assert isinstance(whole.train, Packed)
    assert isinstance(whole.train.stream, np.memmap)
    rows = np.array([4, 0, 2, 4])
    for name, array in whole.train.read(rows).items():
        np.testing.assert_array_equal(array, held.train.read(rows)[name])
    assert mapped.validation is not None
    assert mapped.train.size + mapped.validation.size == held.train.size - 2 + held.test.size


def test_a_run_on_other_text_uses_the_recorded_tokenizer(tmp_path, folder):
    keys = {"tokenizer": "bpe", "vocabulary_size": 300}
    trained = load(config(tmp_path, folder, **keys))
    recorded = Encoding.from_json(json.loads(json.dumps(trained.encoding.to_json())))
    other = tmp_path / "other.txt"
    other.write_text("Something else altogether, in other words.\n" * 20)
    found = load(config(tmp_path, other, **keys), encoding=recorded)
    assert found.vocabulary == trained.vocabulary
    assert text_of(found, "train") + text_of(found, "test") == other.read_text()


def test_a_tokenizer_that_has_changed_is_refused(tmp_path, folder):
    trained = load(config(tmp_path, folder, tokenizer="bpe", vocabulary_size=300))
    path = tmp_path / "tokenizer.json"
    path.write_text(trained.vocabulary.tokenizer)
    given = load(config(tmp_path, folder, tokenizer=str(path)))
    assert given.vocabulary == trained.vocabulary
    assert load(config(tmp_path, folder, tokenizer=str(path)), encoding=given.encoding).digest == given.digest
    path.unlink()  # a run has it, and outlives the file
    assert load(config(tmp_path, folder, tokenizer=str(path)), encoding=given.encoding).digest == given.digest
    other = load(config(tmp_path, folder, tokenizer="bpe", vocabulary_size=280))
    path.write_text(other.vocabulary.tokenizer)
    for keys, words in [
        ({"tokenizer": str(path)}, "sha256"),
        ({"tokenizer": "bytes"}, "bpe, 300 tokens"),
        ({"tokenizer": "bpe", "end_token": END}, "null"),
    ]:
        with pytest.raises(ConfigError, match=words) as told:
            load(config(tmp_path, folder, **keys), encoding=given.encoding)
        assert "what the run was trained with" in str(told.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"one\ntwo \xff\n", r"a.txt, line 2: byte 0xff at 8 is not UTF-8"),
        ("a.txt", b"one\ntwo \xc3", r"a.txt, line 2: byte 0xc3 at 8 is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n', r"a.jsonl, line 2: byte 0xff at 24 is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', r"a.jsonl, line 2: no JSON"),
        ("a.txt", b"\xef\xbb\xbfone\ntwo \xff\n", r"a.txt, line 2: byte 0xff at 11 is not UTF-8"),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "x"}\n{"text": "\xff"}\n', r"line 2: byte 0xff at 27 is not UTF-8"),
        ("a.jsonl", b'{"text": ' + b"[" * 200_000, r"a.jsonl, line 1: no JSON \(too deeply nested\); a .jsonl has"),
        ("a.jsonl", b'{"n": ' + b"1" * 5000 + b"}\n", r"line 1: no JSON \(a number of 5,000 digits\); a .jsonl has"),
        ("a.jsonl", b'{"body": "x"}\n', r"no field 'text'; the fields are body: set dataset.column"),
        ("a.jsonl", b'{"text": 3}\n', r"'text' holds int"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"half a character"),
        ("a.jsonl", b'["text"]\n', r"list, and an object"),
        ("a.parquet", b"PAR1", r"a.parquet can't be read"),
        ("a.txt", b"", r"there is no text in it"),
        ("a.jsonl", b'{"text": ""}\n' * 20, r"there is no text in it"),
    ],
)
def test_what_is_no_text_is_told_with_its_place(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as told:
        load(config(tmp_path, tmp_path / name))
    assert "\n" not in str(told.value)
    is_stored = bool(list((tmp_path / "data").glob(".text/tokens/*/meta.json")))
    assert is_stored == ("no text in it" in words)  # nothing is left of what could not be read


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_mark_of_the_byte_order_is_no_text(tmp_path, name):
    texts = [f"{number} and more of it\n" for number in range(20)]
    content = "".join(texts) if name == "a.txt" else "".join(json.dumps({"text": one}) + "\n" for one in texts)
    (tmp_path / name).write_text(content, "utf-8-sig")
    data = load(config(tmp_path, tmp_path / name))
    assert text_of(data, "train") + text_of(data, "test") == "".join(texts)


def test_a_glob_that_matches_a_file_twice_reads_it_once(tmp_path, folder):
    data = load(config(tmp_path, folder / "**" / "**" / "*.jsonl", documents="joined"))
    assert data.texts["train"].documents + data.texts["test"].documents == 19


def test_a_parquet_without_the_column_or_with_nothing_in_a_row_is_told(tmp_path):
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"body": ["x", None]}), path)
    with pytest.raises(DataError, match="no column 'text'; the columns are body"):
        load(config(tmp_path, path))
    with pytest.raises(DataError, match="body: row 2 is missing"):
        load(config(tmp_path, path, column="body"))


UNABLE = {
    "words": models.WordLevel({"a": 0, "b": 1}),
    "pieces": models.WordPiece({"a": 0, "b": 1}),
    "unigram": models.Unigram([("a", 0.0), ("b", -1.0)]),
    "bpe": models.BPE({"x": 0, "y": 1}, []),
}


@pytest.mark.parametrize("kind", UNABLE)
def test_a_tokenizer_without_tokens_for_the_text_is_refused(tmp_path, kind):
    made, path, text = Tokenizer(UNABLE[kind]), tmp_path / "tokenizer.json", tmp_path / "a.txt"
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(path))
    text.write_text("a b c\n" * 40)
    words = "drops all of it" if kind == "bpe" else r"can't encode it \(.*(UNK|unk_id).*\)"
    with pytest.raises(ConfigError, match=rf"dataset.tokenizer=.*tokenizer.json is refused: .* and this one {words};"):
        load(config(tmp_path, text, tokenizer=str(path)))


def test_a_tokenizer_of_numbers_that_no_int32_holds_is_refused(tmp_path, folder):
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0, "b": 3_000_000_000})).save(str(path))
    with pytest.raises(ConfigError, match="at most 16,777,216 tokens, and the largest of this one is 3,000,000,000"):
        load(config(tmp_path, folder, tokenizer=str(path)))


@pytest.mark.parametrize("end", ["a", "er", "Ġthe"])
def test_an_end_of_documents_that_is_a_piece_of_text_is_refused(tmp_path, folder, end):
    keys = {"tokenizer": "bpe", "vocabulary_size": 600}
    with pytest.raises(ConfigError, match=f"dataset.end_token={end} is refused: what no text is encoded as"):
        load(config(tmp_path, folder, **keys, end_token=end))
    path = tmp_path / "tokenizer.json"
    plain = Tokenizer.from_str(load(config(tmp_path, folder, **keys)).vocabulary.tokenizer)
    plain.add_special_tokens([END])
    plain.add_tokens(["|plain|"])
    plain.save(str(path))
    given = {"tokenizer": str(path)}
    for wanted in (end, "|plain|"):
        with pytest.raises(ConfigError, match=r"dataset.end_token=.* is refused: what no text is encoded as"):
            load(config(tmp_path, folder, **given, end_token=wanted))
    assert load(config(tmp_path, folder, **given, end_token=END)).vocabulary.end == plain.token_to_id(END)


def test_sequences_that_are_longer_than_the_text_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a short text\n" * 4)
    with pytest.raises(
        ConfigError, match=r"dataset.sequence_length=64 is refused: split train of a.txt has \d+ tokens"
    ):
        load(config(tmp_path, path, sequence_length=64, documents="joined"))


def test_documents_of_one_token_each_that_are_kept_apart_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x"}) + "\n" for _ in range(30)))
    with pytest.raises(ConfigError, match="documents=apart is refused: a label that counts, and split train has none"):
        load(config(tmp_path, path))
    assert load(config(tmp_path, path, end_token=END)).train.size > 0
    assert load(config(tmp_path, path, documents="joined", sequence_length=2)).train.size > 0


@pytest.mark.parametrize("documents", ["apart", "joined"])
def test_what_no_shorter_sequence_mends_is_told_so(tmp_path, documents):
    (tmp_path / "a.txt").write_text("abcdef")
    with pytest.raises(DataError, match=r"split test of a.txt has 1 token, and .* are needed; take more text"):
        load(config(tmp_path, tmp_path / "a.txt", documents=documents, sequence_length=2))


def test_a_folder_without_text_is_told(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"holds no file that ends in \.txt, \.jsonl, \.parquet"):
        load(config(tmp_path, tmp_path / "a"))


def test_what_lies_in_the_cache_and_is_broken_is_written_anew(tmp_path, folder):
    first = load(config(tmp_path, folder))
    wanted = text_of(first, "train")
    (stream,) = (tmp_path / "data").glob(".text/tokens/*/train.tokens")
    stream.write_bytes(b"short")
    assert text_of(load(config(tmp_path, folder)), "train") == wanted


def test_a_cache_below_a_file_is_told_with_the_mend(tmp_path, folder):
    with pytest.raises(DataError, match=r"a.txt/.text can't be written \(Not a directory\); .*set dataset.data_dir="):
        load(config(tmp_path, folder, data_dir=str(folder / "a.txt")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_can_be_read_alone_is_used(tmp_path, folder):
    first = load(config(tmp_path, folder))
    for one in [*(tmp_path / "data").rglob("*"), tmp_path / "data"]:
        one.chmod(0o555 if one.is_dir() else 0o444)
    assert load(config(tmp_path, folder)).digest == first.digest


def test_pydoc_is_there_and_its_topics_are_kept_apart(tmp_path):
    from pydoc_data.topics import topics

    data = load(DatasetConfig(name="pydoc", tokenizer="bytes", sequence_length=128, data_dir=str(tmp_path)))
    assert sum(one.documents for one in data.texts.values()) == len([one for one in topics.values() if one])
    assert text_of(data, "train").startswith(topics[min(topics)])


LOAD = """
import json, sys
from runner.data import load, packed
from runner.config.schema_data import DatasetConfig
import numpy

def peak():  # of this process alone: what getrusage tells begins with its parent's
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

packed._RAM_BYTES = int(sys.argv[2])
before = peak()
data = load(DatasetConfig(**json.loads(sys.argv[1])))
data.train.read(numpy.arange(0, data.train.size, data.train.size // 8))
print(data.digest, (peak() - before) >> 10, data.texts["train"].tokens)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is told by Linux alone")
def test_a_corpus_is_never_held_in_memory(tmp_path):
    path = tmp_path / "large.txt"
    line = b"To be, or not to be, that is the question:\n"
    with path.open("wb") as file:
        for _ in range(48):
            file.write(line * ((1 << 20) // len(line)))
    wanted = {"name": "text", "path": str(path), "tokenizer": "bytes", "test": "test", "data_dir": str(tmp_path)}
    child = python(LOAD, json.dumps(wanted), "1")
    output, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors
    _, mebibytes, tokens = output.split()
    assert int(tokens) > 42 << 20
    assert int(mebibytes) < 24, "of a corpus of 48"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is told by Linux alone")
def test_several_processes_at_once_encode_it_once(tmp_path, folder):
    wanted = {"name": "text", "path": str(folder), "tokenizer": "bpe", "vocabulary_size": 300, "test": "test"}
    given = json.dumps(wanted | {"data_dir": str(tmp_path / "data"), "sequence_length": 8})
    children = [python(LOAD, given, "1") for _ in range(3)]
    found = [child.communicate(timeout=300) for child in children]
    assert all(child.returncode == 0 for child in children), found
    assert len({output.split()[0] for output, _ in found}) == 1
    assert sum("training a tokenizer" in errors for _, errors in found) == 1
