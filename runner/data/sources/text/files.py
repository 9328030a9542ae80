"""A user's files of text: which there are, and their documents, read piece by piece."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.data.base import in_order
from runner.data.checks_text import SUFFIXES, matches
from runner.errors import DataError, invalid
from runner.host.late import late

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    # a second to import, which other files do without
    pa = late("pyarrow")
    pq = late("pyarrow.parquet")

PIECE = 1 << 16  # characters of a piece, at most
_CHUNK = 1 << 20  # bytes that are read at once
_ROWS = 256  # of a .parquet
_OTHER_NAMES = {"val": "validation", "valid": "validation"}
_HELD = {"test", "validation", *_OTHER_NAMES}  # what is not trained on
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(-[0-9a-f]+)?")  # a part of a split

Piece = tuple[str, bool]  # a part of a document, and whether the document ends with it


@dataclass(frozen=True)
class Text:
    """A document that is not in a file, as one of Python's own."""

    name: str
    content: str


Source = Path | Text


def find(path: str) -> dict[str, Sequence[Source]]:
    """Returns the files of each split, in the order of their names.

    A folder's splits are its folders (`train/`), else its files (`train.txt`), else the shards below it
    (`data/train-00000-of-00002.parquet`, as Hugging Face calls them), where one is called train. All other files, and
    those of a glob, are one split `train`.

    Raises:
      ConfigError: a folder has what is called test or validation, and nothing that is called train, or not likewise.
      DataError: a folder has no such file.
    """
    there = matches(path)
    if len(there) != 1 or not there[0].is_dir():
        return {"train": list(there)}
    root = there[0]
    below = _below(root)
    inside = {one.name: _below(one) for one in sorted(root.iterdir()) if one.is_dir() and not one.name.startswith(".")}
    folders = {name: files for name, files in inside.items() if files}
    own = _by_split(one for one in below if one.parent == root)
    shards = _by_split(one for one in below if _SHARD.fullmatch(one.stem))
    found = next((names for names in (folders, own, shards) if "train" in names), {"train": below})
    if not below:
        raise DataError(f"{root.absolute()} holds no file that ends in {', '.join(SUFFIXES)}")
    held = sorted(_HELD & {*folders, *own, *shards})
    if held and found["train"] is below:
        raise invalid(
            "dataset.path",
            path,
            problem=f"a folder with a split train, and this one has {', '.join(held)} alone",
            fix="call what is trained on train, or give a glob, whose files are one split",
        )
    if held and (apart := [name for name in held if name not in found]):
        kind = "folders" if found is folders else "files"
        raise invalid(
            "dataset.path",
            path,
            problem=f"splits that are all folders or all files, and here train is of {kind} and {apart[0]} is not",
            fix=f"make {apart[0]} one of {kind} too, or give a glob, whose files are one split",
        )
    named: dict[str, Sequence[Source]] = {}
    for name, files in found.items():
        split = _OTHER_NAMES.get(name, name)
        if split in named:
            raise DataError(f"{root.absolute()} has two of validation, val and valid, which mean one; drop one")
        named[split] = files
    return {split: named[split] for split in in_order(sorted(named))}


def _by_split(files: Iterable[Path]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for one in files:
        shard = _SHARD.fullmatch(one.stem)
        found.setdefault(shard[1] if shard else one.stem, []).append(one)
    return found


def _below(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*"), key=lambda one: one.relative_to(folder).as_posix())
    hidden = [any(part.startswith(".") for part in one.relative_to(folder).parts) for one in files]
    return [one for one, is_hidden in zip(files, hidden, strict=True) if not is_hidden and _is_text(one)]


def _is_text(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def name_of(source: Source) -> str:
    """Returns what a message calls it."""
    return source.name if isinstance(source, Text) else str(source)


def pieces(sources: Sequence[Source], column: str) -> Iterator[Piece]:
    """Yields the documents of files in pieces, none of them empty but where a document is.

    A document that is longer than 64 Ki characters is cut where a line ends between two letters, if it can be: a
    byte-level tokenizer then nearly always gives the same tokens for the pieces as for the whole. Where all lines are
    indented or end in CRLF it is cut where any ends, and a longer line within itself, perhaps within a word.

    Args:
      sources: in order.
      column: the field or column that holds the text.

    Raises:
      DataError: a file can't be read, is not UTF-8, or has no such field; names the file and the place.
    """
    for source in sources:
        if isinstance(source, Text):
            yield from _cut([source.content])
            continue
        kind = source.suffix.lower()
        try:
            if kind == ".jsonl":
                for text in _lines(source, column):
                    yield from _cut([text])
            elif kind == ".parquet":
                for text in _rows(source, column):
                    yield from _cut([text])
            else:
                yield from _cut(_plain(source))
        except OSError as error:
            raise DataError(f"{source} can't be read: {' '.join(str(error.strerror or error).split())}") from error


def _cut(texts: Sequence[str] | Iterator[str]) -> Iterator[Piece]:
    """Cuts one document that comes in parts."""
    held = ""
    for text in texts:
        held += text
        start = 0
        while len(held) - start > PIECE:
            stop = _place(held, start, start + PIECE)
            yield held[start:stop], False
            start = stop
        held = held[start:]
    yield held, True


def _place(text: str, start: int, stop: int) -> int:
    """Returns where a text is cut: behind the last line's end between two letters, else the last line's end."""
    line = last = text.rfind("\n", start, stop)
    while line > start:
        if not text[line - 1].isspace() and not text[line + 1].isspace():
            return line + 1
        line = text.rfind("\n", start, line)
    return last + 1 or stop


def _plain(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    read = 0
    lines = 1
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            read = len(codecs.BOM_UTF8)
        file.seek(read)
        while True:
            chunk = file.read(_CHUNK)
            waiting = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                at = read - waiting + error.start
                line = lines + error.object[: error.start].count(b"\n")
                raise _not_utf8(f"{path}, line {line:,}", error.object[error.start], at) from error
            if text:
                yield text
            if not chunk:
                return
            read = read + len(chunk)
            lines = lines + text.count("\n")


def _not_utf8(where: str, byte: int, at: int) -> DataError:
    return DataError(
        f"{where}: byte 0x{byte:02x} at {at:,} is not UTF-8; convert the file, as by iconv -t utf-8, or leave it out"
    )


def _lines(path: Path, column: str) -> Iterator[str]:
    read = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number:,}"
            if number == 1 and line.startswith(codecs.BOM_UTF8):
                read = len(codecs.BOM_UTF8)
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                content = json.loads(line.decode(), parse_int=_number) if line.strip() else None
            except UnicodeDecodeError as error:
                raise _not_utf8(where, line[error.start], read + error.start) from error
            except (ValueError, RecursionError) as error:
                why = "too deeply nested" if isinstance(error, RecursionError) else error
                raise DataError(f"{where}: no JSON ({why}); a .jsonl has an object a line") from error
            read += len(line)
            if line.strip():
                yield _field(where, content, column)


def _number(digits: str) -> int:
    try:
        return int(digits)
    except ValueError as error:  # Python's own advice is of no use here
        raise ValueError(f"a number of {len(digits):,} digits") from error


def _field(where: str, content: object, column: str) -> str:
    if not isinstance(content, Mapping):
        raise DataError(f"{where}: {type(content).__name__}, and an object with the field {column!r} is needed")
    if column not in content:
        names = ", ".join(map(str, list(content)[:5])) or "none"
        raise DataError(f"{where}: no field {column!r}; the fields are {names}: set dataset.column to one")
    text = content[column]
    if not isinstance(text, str):
        raise DataError(f"{where}: {column!r} holds {type(text).__name__}, and a text is needed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {column!r} holds half a character ({error.reason}), which no UTF-8 has") from error
    return text


def _rows(path: Path, column: str) -> Iterator[str]:
    try:
        with pq.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names[:5])
                raise DataError(f"{path} has no column {column!r}; the columns are {names}: set dataset.column to one")
            row = 0
            for batch in file.iter_batches(batch_size=_ROWS, columns=[column], use_threads=False):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if not isinstance(text, str):
                        what = "is missing" if text is None else f"holds {type(text).__name__}, and a text is needed"
                        raise DataError(f"{path}, {column}: row {row:,} {what}; fix it or leave it out")
                    yield text
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {' '.join(str(error).split())[:300]}") from error
