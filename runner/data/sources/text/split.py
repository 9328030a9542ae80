"""What of a text is tested on where its files don't say: the end of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner.data.sources.text.files import Piece

_SHARE = 0.1
_FEW = 10  # documents, below which a share of them is too coarse


@dataclass(frozen=True)
class Cut:
    """Where train ends and test begins.

    Attributes:
      document: the first of test.
      character: within that document, where test begins; 0: with the document.
      about: what test is, in words.
    """

    document: int
    character: int
    about: str


def cut(pieces: Iterable[Piece]) -> Cut:
    """Finds the last tenth of the documents, or of the characters where there are less than ten documents.

    Args:
      pieces: of all documents.
    """
    lengths: list[int] = []  # of the first documents
    count = length = total = 0
    for text, ends in pieces:
        length += len(text)
        if ends:
            total += length
            if length and count < _FEW:
                lengths.append(length)
            count = count + (length > 0)
            length = 0
    if count >= _FEW:
        last = round(count * _SHARE)
        return Cut(count - last, 0, f"the last {last:,} of {count:,} documents")
    wanted = total - round(total * _SHARE)
    before = 0
    of = "the document" if count == 1 else f"{count} documents"
    for number, own in enumerate(lengths):
        if before + own > wanted:
            return Cut(number, wanted - before, f"the last tenth of {of}")
        before += own
    return Cut(count, 0, "nothing")


def train_part(pieces: Iterable[Piece], at: Cut) -> Iterator[Piece]:
    """Yields what lies before a cut; empty documents don't count."""
    for split, text, ends in parted(pieces, at):
        if split == "test":
            return
        yield text, ends


def parted(pieces: Iterable[Piece], at: Cut) -> Iterator[tuple[str, str, bool]]:
    """Yields (`train` or `test`, piece, whether a document of that split ends with it); nothing of empty documents."""
    document = begun = 0  # documents before this one, and characters of this one
    for text, ends in pieces:
        if not text and not begun:
            continue
        if not at.character or document != at.document or not begun <= at.character < begun + len(text):
            in_test = document > at.document or (document == at.document and begun >= at.character)
            yield "test" if in_test else "train", text, ends
        else:
            place = _line(text, at.character - begun)
            yield "train", text[:place], True
            yield "test", text[place:], ends
        begun += len(text)
        if ends:
            document = document + (begun > 0)
            begun = 0


def _line(text: str, wanted: int) -> int:
    """Returns where the first line from a place on begins; the place itself where there is none but an end."""
    found = text.find("\n", wanted) + 1
    return found if 0 < found < len(text) else wanted
