"""The test split of a text without one: its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from runner.data.sources.text.files import Piece

# A tenth is enough for a stable loss of a language model, and leaves more to train on than the fifth of other data.
_TEST_SHARE = 0.1
# With fewer documents a tenth of them is less than one, so the text is divided by characters.
_MIN_DOCUMENTS = 10


class Boundary(NamedTuple):
    """The first document of test, and its first character there, 0 if test begins with the document."""

    document: int
    character: int


def find_boundary(pieces: Iterable[Piece]) -> Boundary:
    """Returns the start of the last tenth of the documents; with fewer than ten, of the characters."""
    # Lengths are needed only if there turn out to be few documents.
    first_lengths: list[int] = []
    documents = 0
    length = 0
    total = 0
    for text, ends_document in pieces:
        length += len(text)
        if not ends_document:
            continue
        if length:
            if documents < _MIN_DOCUMENTS:
                first_lengths.append(length)
            documents += 1
        total += length
        length = 0
    if documents >= _MIN_DOCUMENTS:
        last = round(documents * _TEST_SHARE)
        return Boundary(documents - last, 0)
    train_characters = total - round(total * _TEST_SHARE)
    start = 0
    for document, length in enumerate(first_lengths):
        if start + length > train_characters:
            return Boundary(document, train_characters - start)
        start += length
    return Boundary(documents, 0)


def split_pieces(pieces: Iterable[Piece], boundary: Boundary) -> Iterator[tuple[str, str, bool]]:
    """Yields (split, text, whether a document of the split ends with the text), without empty documents."""
    document = 0
    # Characters of the current document before this piece.
    start = 0
    for text, ends_document in pieces:
        if not text and not start:
            continue
        is_boundary_document = document == boundary.document
        has_boundary = is_boundary_document and start <= boundary.character < start + len(text)
        if boundary.character and has_boundary:
            position = _next_line_start(text, boundary.character - start)
            yield "train", text[:position], True
            yield "test", text[position:], ends_document
        else:
            is_past_boundary = is_boundary_document and start >= boundary.character
            split = "train"
            if document > boundary.document or is_past_boundary:
                split = "test"
            yield split, text, ends_document
        start += len(text)
        if ends_document:
            if start:
                document += 1
            start = 0


def _next_line_start(text: str, position: int) -> int:
    """Returns the start of the first line after a position, else the position itself."""
    line_start = text.find("\n", position) + 1
    if 0 < line_start < len(text):
        return line_start
    return position
