"""The documents of text files, read in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import DataError, in_one_line, listed
from runner.host.late import late

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from runner.data.sources import arrow_files
else:
    # PyArrow takes a second to import, and only files with columns need it.
    arrow_files = late("runner.data.sources.arrow_files")
    pq = late("pyarrow.parquet")

# Maximum characters per piece of a document: large enough that few tokens are at the end of a piece, and small enough
# that a tokenizer encodes the pieces of a long document in parallel.
PIECE = 1 << 16
# Characters per read of a .txt file, and rows per read of a .parquet file. They bound the memory for any size of file.
_READ_CHARACTERS = 1 << 20
_READ_ROWS = 256

# Part of a document, and whether the document ends with it.
Piece = tuple[str, bool]


def pieces(files: Sequence[Path], column: str) -> Iterator[Piece]:
    """Yields the documents in pieces, none of them empty unless the document is.

    A document of more than 64 Ki characters is split at a line break between two letters if possible. A byte-level
    tokenizer then nearly always gives the same tokens for the pieces as for the whole document. If all lines are
    indented or end in CRLF, it is split at any line break; a longer line is split anywhere, perhaps inside a word.
    """
    readers = {".jsonl": _read_jsonl, ".parquet": _read_parquet, ".arrow": _read_arrow}
    for path in files:
        read = readers.get(path.suffix.lower())
        try:
            if read is None:
                yield from _split(_read_txt(path))
            else:
                for text in read(path, column):
                    yield from _split([text])
        except UnicodeDecodeError as error:
            byte = f"byte 0x{error.object[error.start]:02x}: {error.reason}"
            raise DataError(
                f"{path} is not UTF-8 ({byte}); convert the file, for example with iconv -t utf-8, or leave it out"
            ) from error
        # PyArrow's errors are ValueError or OSError; other errors of text name the place themselves.
        except (OSError, ValueError) as error:
            raise DataError(f"{path} can't be read: {in_one_line(str(error))}") from error


def _split(parts: Iterable[str]) -> Iterator[Piece]:
    """Splits one document, given in parts, into pieces."""
    rest = ""
    for part in parts:
        rest += part
        start = 0
        while len(rest) - start > PIECE:
            stop = _split_position(rest, start, start + PIECE)
            yield rest[start:stop], False
            start = stop
        rest = rest[start:]
    yield rest, True


def _split_position(text: str, start: int, stop: int) -> int:
    """Returns the position after the last line break between two letters, else after the last one, else `stop`."""
    last = text.rfind("\n", start, stop)
    line_break = last
    while line_break > start:
        if not text[line_break - 1].isspace() and not text[line_break + 1].isspace():
            return line_break + 1
        line_break = text.rfind("\n", start, line_break)
    return last + 1 or stop


def _read_txt(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        while text := file.read(_READ_CHARACTERS):
            yield text


def _read_jsonl(path: Path, column: str) -> Iterator[str]:
    """Yields the text of each line's object; empty lines are skipped."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number:,}"
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = str(error)
                if isinstance(error, RecursionError):
                    reason = "too deeply nested"
                problem = f"invalid JSON ({reason})"
                raise DataError(f"{where}: {problem}; a .jsonl file needs one object per line") from error
            yield _text_field(where, content, column)


def _text_field(where: str, content: object, column: str) -> str:
    if not isinstance(content, Mapping):
        raise DataError(f"{where}: must be an object with the field {column!r}, not {type(content).__name__}")
    if column not in content:
        fields = listed(content) or "none"
        raise DataError(f"{where}: there is no field {column!r} (the fields: {fields}); set dataset.column to one")
    text = content[column]
    if not isinstance(text, str):
        raise DataError(f"{where}: {column!r} must be a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {column!r} has half a character ({error.reason}), which UTF-8 can't represent; fix that line"
        ) from error
    return text


def _read_parquet(path: Path, column: str) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        _check_column(path, column, file.schema_arrow.names)
        yield from _texts(path, column, file.iter_batches(batch_size=_READ_ROWS, columns=[column], use_threads=False))


def _read_arrow(path: Path, column: str) -> Iterator[str]:
    table = arrow_files.open_table(path)
    _check_column(path, column, table.column_names)
    yield from _texts(path, column, table.select([column]).to_batches(_READ_ROWS))


def _check_column(path: Path, column: str, columns: Sequence[str]) -> None:
    if column not in columns:
        raise DataError(
            f"{path}: there is no column {column!r} (the columns: {listed(columns)}); set dataset.column to one"
        )


def _texts(path: Path, column: str, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    row = 0
    for batch in batches:
        for text in batch.column(0).to_pylist():
            row += 1
            if not isinstance(text, str):
                problem = f"must be a string, not {type(text).__name__}"
                if text is None:
                    problem = "is missing"
                raise DataError(f"{path}, {column}: row {row:,} {problem}; fix that row or remove it")
            yield text
