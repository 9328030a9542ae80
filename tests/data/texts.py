"""A folder of texts, and the config that reads it."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from runner.config.schema_data import DatasetConfig

END = "<|endoftext|>"
LINES = [
    f"Ärger number {number}: to be, or not to be\n\n  that is {number} times the question.\n" for number in range(40)
]


def written(tmp_path: Path) -> Path:
    """Forty documents in five files of four kinds."""
    made = tmp_path / "notes"
    (made / "below").mkdir(parents=True)
    (made / "a.txt").write_bytes((LINES[0] + "\r\n").encode())
    (made / "below" / "b.jsonl").write_text("".join(json.dumps({"text": one}) + "\n\n" for one in LINES[1:20]))
    pa.parquet.write_table(pa.table({"n": range(10), "text": LINES[20:30]}), made / "c.parquet")
    table = pa.table({"text": LINES[30:]})
    with pa.ipc.new_file(made / "d.arrow", table.schema) as file:
        file.write_table(table)
    (made / "d.csv").write_text("not,text\n")
    (made / ".hidden.txt").write_text("hidden")
    return made


def tokenizer(texts: list[str], size: int = 300, end: str | None = None) -> Tokenizer:
    """Returns a byte-level byte pair encoding, trained on texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[] if end is None else [end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def saved(path: Path, size: int = 300) -> str:
    """Writes the tokenizer.json of LINES and returns its path."""
    tokenizer(LINES, size).save(str(path))
    return str(path)


def config(tmp_path: Path, path: object, **keys: object) -> DatasetConfig:
    given = {"tokenizer": "bytes", "sequence_length": 32, "test": "test", "data_dir": str(tmp_path / "data")} | keys
    return DatasetConfig(name="text", path=str(path), **given)
