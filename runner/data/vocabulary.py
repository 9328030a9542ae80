"""What the tokens of a text stand for: bytes, or the pieces of a tokenizer. Imports NumPy alone.

A vocabulary holds all that encodes and decodes, so that it is recorded with a run and outlives the file it came from.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runner.errors import in_one_line
from runner.host.late import late

if TYPE_CHECKING:
    import tokenizers
else:
    tokenizers = late("tokenizers")  # an extra, which bytes do without

BYTES = "bytes"
BPE = "bpe"
TOKENIZER = "tokenizer.json"  # file of a run that was encoded by one, and of every export
_MOST_BYTES = 1 << 28  # of a recorded tokenizer, unpacked
_SPACE = "\u2581"  # SentencePiece's sign for it
_WORD_PIECE = "##"  # BERT's mark of what goes on with a word


class EncodingError(ValueError):
    """A text that a tokenizer can't encode."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a text, and how text becomes them and is had back.

    Attributes:
      kind: `bytes`, or `bpe` of whatever a tokenizer.json describes.
      end_token: text of the token behind each document; null: there is none.
      tokenizer: content of a tokenizer.json; empty of bytes.

    Example:
      >>> Vocabulary("bytes").decode(Vocabulary("bytes").encode("To be"))
      'To be'
    """

    kind: str
    end_token: str | None = None
    tokenizer: str = ""

    @cached_property
    def size(self) -> int:
        """Number of tokens, V: one more than the largest."""
        if self.kind == BYTES:
            return 256 + (self.end_token is not None)
        return max(self._library.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def end(self) -> int | None:
        """The token behind each document; None: there is none."""
        if self.end_token is None:
            return None
        return 256 if self.kind == BYTES else self._library.token_to_id(self.end_token)

    @property
    def end_is_text(self) -> bool:
        """Whether a text may be encoded as the end token, which decoding leaves out."""
        if self.kind == BYTES or self.end is None or self.end_token is None:
            return False
        if self.end_token in self.special and not isinstance(self._library.model, tokenizers.models.BPE):
            return False  # of a list of words every one is found in a text, special or not
        texts = {self.end_token, str(self._library.decode([self.end], skip_special_tokens=False))}
        try:
            return any(one.ids == [self.end] for one in self._encoded([*texts]))
        except EncodingError:
            return False

    @property
    def special(self) -> list[str]:
        """Texts of a tokenizer's special tokens, which no text is encoded as."""
        return [str(one.content) for one in self._library.get_added_tokens_decoder().values() if one.special]

    @cached_property
    def sha256(self) -> str:
        """What identifies it, as hex."""
        content = [self.kind, self.end_token, json.loads(self.tokenizer) if self.tokenizer else None]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @cached_property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest type that holds every token."""
        kinds: tuple[type[np.unsignedinteger], ...] = (np.uint8, np.uint16, np.uint32)
        return np.dtype(next(kind for kind in kinds if self.size - 1 <= np.iinfo(kind).max))

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Returns the tokens (n,) of a text, without one for its end."""
        return self.encode_pieces([text])[0].astype(np.int32)

    def encode_pieces(self, pieces: Sequence[str]) -> list[npt.NDArray[np.unsignedinteger]]:
        """Returns the tokens of several texts, each (n,) of `dtype`; a tokenizer takes them side by side.

        Raises:
          EncodingError: the tokenizer has no tokens for a text, and none for what is unknown.
        """
        if self.kind == BYTES:
            return [np.frombuffer(one.encode(), np.uint8).astype(self.dtype, copy=False) for one in pieces]
        return [np.array(one.ids, self.dtype) for one in self._encoded(pieces)]

    def _encoded(self, pieces: Sequence[str]) -> list[tokenizers.Encoding]:
        try:
            return self._library.encode_batch_fast(list(pieces), add_special_tokens=False)
        except Exception as error:  # the library raises bare exceptions
            raise EncodingError(in_one_line(str(error))) from error

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens; ends of documents are left out, half a character becomes U+FFFD."""
        ids = np.asarray(list(tokens), np.int64)
        ids = ids if self.end is None else ids[ids != self.end]
        if self.kind == BYTES:
            return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")
        return str(self._library.decode(ids.tolist(), skip_special_tokens=False))

    def token_bytes(self) -> npt.NDArray[np.int32]:
        """Returns how many bytes of UTF-8 each token stands for, (V,); 0 of one that stands for no text.

        Exact of bytes and of byte-level tokenizers; of others what the token adds in the middle of a text.
        """
        counts = np.zeros(self.size, np.int32)
        if self.kind == BYTES:
            counts[:256] = 1
            return counts
        content = json.loads(self.tokenizer)
        added = self._library.get_added_tokens_decoder()
        stages = json.dumps([content.get(stage) for stage in ("normalizer", "pre_tokenizer", "decoder")])
        suffix = content["model"].get("end_of_word_suffix") or (content.get("decoder") or {}).get("suffix") or ""
        for token, number in self._library.get_vocab(with_added_tokens=True).items():
            if number not in added:
                counts[number] = _bytes_of(token, stages, suffix)
            elif not added[number].special:
                counts[number] = len(token.encode())
        return counts

    def tokenizer_json(self) -> str:
        """Returns the content of a tokenizer.json: a tokenizer's own, and one that gives every text's bytes.

        It neither cuts nor pads, as `encode` does not.
        """
        content = json.loads(self.tokenizer) if self.tokenizer else _of_bytes(self.end_token)
        changes = {key: None for key in ("truncation", "padding") if content.get(key) is not None}
        return json.dumps(content | changes) if changes or not self.tokenizer else self.tokenizer

    def to_json(self) -> dict[str, str | None]:
        """Returns it as plain values, to be recorded."""
        packed = base64.b64encode(zlib.compress(self.tokenizer.encode(), 9)).decode() if self.tokenizer else ""
        return {"kind": self.kind, "end_token": self.end_token, "tokenizer": packed}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Vocabulary:
        """Reads what `to_json` gave.

        Raises:
          ValueError: it is something else.
        """
        kind = content.get("kind")
        end = content.get("end_token")
        packed = content.get("tokenizer", "")
        if kind not in (BYTES, BPE) or not isinstance(end, str | None) or not isinstance(packed, str):
            raise ValueError("a vocabulary has kind, end_token and tokenizer")
        if bool(packed) != (kind == BPE):
            raise ValueError("a vocabulary of kind bpe has a tokenizer, and one of bytes has none")
        try:
            unpacked = zlib.decompressobj().decompress(base64.b64decode(packed), _MOST_BYTES) if packed else b""
            made = cls(str(kind), end, unpacked.decode())
        except (ValueError, zlib.error) as error:
            raise ValueError("a vocabulary's tokenizer can't be unpacked") from error
        return made

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        found = tokenizers.Tokenizer.from_str(self.tokenizer)
        found.no_truncation()
        found.no_padding()
        found.encode_special_tokens = True  # what looks like one in a text is text
        return found


def _of_bytes(end_token: str | None) -> dict[str, object]:
    """Returns a byte pair encoding without a pair: token i is byte i, and 256 the end of a document."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    ends = [] if end_token is None else [{"id": 256, "content": end_token} | flags]
    model = {"type": "BPE", "vocab": {sign: byte for byte, sign in enumerate(_signs())}, "merges": []}
    return {"version": "1.0", "added_tokens": ends, "pre_tokenizer": level, "decoder": level, "model": model}


def _signs() -> list[str]:
    """Returns the character that byte-level tokenizers write for each byte: the byte's own where that is printed."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def _bytes_of(token: str, stages: str, suffix: str) -> int:
    if suffix and token.endswith(suffix):
        return _bytes_of(token.removesuffix(suffix), stages, "") + 1  # the blank behind a word
    if "ByteLevel" in stages:  # each byte is a character of its own
        return len(token)
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return 1
    if "WordPiece" in stages:
        return len(token.removeprefix(_WORD_PIECE).encode()) + (not token.startswith(_WORD_PIECE))
    return len(token.replace(_SPACE, " ").encode())
