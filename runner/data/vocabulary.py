"""Vocabularies of text: bytes, or the tokens of a tokenizer. Imports NumPy only.

A vocabulary has everything that encoding and decoding need, so that it is recorded with a run and does not depend on
the file it was read from.
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

from runner.config.schema_data import BYTES
from runner.errors import in_one_line
from runner.host.late import late

if TYPE_CHECKING:
    import tokenizers
else:
    # An optional extra that byte vocabularies do not need.
    tokenizers = late("tokenizers")

# Number of bytes, which are the first tokens of a vocabulary of bytes.
_BYTE_VALUES = 256
# File name of the tokenizer in the folder of a run and in every export.
TOKENIZER = "tokenizer.json"
# Limit for unpacking a recorded tokenizer, so that a manipulated record can't fill the memory. Even a tokenizer.json
# with a vocabulary of 256,000 tokens has some tens of MB.
_MAX_TOKENIZER_BYTES = 1 << 28
# SentencePiece writes a space as this character.
_SENTENCEPIECE_SPACE = "\u2581"
# WordPiece (BERT) marks a token that continues a word with this prefix.
_WORDPIECE_PREFIX = "##"


class EncodingError(ValueError):
    """A text that a tokenizer can't encode."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a text, with encoding and decoding.

    >>> Vocabulary().decode(Vocabulary().encode("To be"))
    'To be'

    Attributes:
      end_token: text of the token that is appended to each document; None: none is appended.
      tokenizer: content of a tokenizer.json; empty: the tokens are bytes.
    """

    end_token: str | None = None
    tokenizer: str = ""

    @property
    def is_bytes(self) -> bool:
        """Returns whether the tokens are bytes."""
        return not self.tokenizer

    @cached_property
    def size(self) -> int:
        """V: one more than the largest token."""
        if self.is_bytes:
            return _BYTE_VALUES + (self.end_token is not None)
        return max(self._library.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def end(self) -> int | None:
        """Number of the token that is appended to each document; None: none is appended."""
        if self.end_token is None:
            return None
        if self.is_bytes:
            return _BYTE_VALUES
        return self._library.token_to_id(self.end_token)

    @property
    def special(self) -> list[str]:
        """Texts of the special tokens of a tokenizer, which no text is encoded as."""
        added = self._library.get_added_tokens_decoder().values()
        return [str(token.content) for token in added if token.special]

    @cached_property
    def sha256(self) -> str:
        """Digest, as hex."""
        content: list[object] = [BYTES, self.end_token, None]
        if self.tokenizer:
            # Recorded runs have "bpe" for any kind of tokenizer.
            content = ["bpe", self.end_token, json.loads(self.tokenizer)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @cached_property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest dtype that represents every token."""
        return np.min_scalar_type(self.size - 1)

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Returns the tokens (n,) of a text, without an end token."""
        return self.encode_pieces([text])[0].astype(np.int32)

    def encode_pieces(self, pieces: Sequence[str]) -> list[npt.NDArray[np.unsignedinteger]]:
        """Returns the tokens of several texts, each (n,) of `dtype`; a tokenizer encodes them in parallel.

        Raises:
          EncodingError: the tokenizer has no tokens for a text and no unknown token.
        """
        if self.is_bytes:
            return [np.frombuffer(text.encode(), np.uint8).astype(self.dtype, copy=False) for text in pieces]
        try:
            encodings = self._library.encode_batch_fast(list(pieces), add_special_tokens=False)
        # The library tokenizers raises bare exceptions.
        except Exception as error:
            raise EncodingError(in_one_line(str(error))) from error
        return [np.array(encoding.ids, self.dtype) for encoding in encodings]

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, without end tokens; incomplete characters become U+FFFD."""
        ids = np.asarray(list(tokens), np.int64)
        if self.end is not None:
            ids = ids[ids != self.end]
        if self.is_bytes:
            return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")
        return str(self._library.decode(ids.tolist(), skip_special_tokens=False))

    def token_bytes(self) -> npt.NDArray[np.int32]:
        """Returns the number of UTF-8 bytes per token, (V,); 0 for a token without text.

        Exact for bytes and byte-level tokenizers; for others the bytes that the token adds inside a text.
        """
        counts = np.zeros(self.size, np.int32)
        if self.is_bytes:
            counts[:_BYTE_VALUES] = 1
            return counts
        content = json.loads(self.tokenizer)
        decoder = content.get("decoder") or {}
        # As text, because a stage may be a list of others: what counts is whether it has one of a kind.
        stages = json.dumps([content.get("normalizer"), content.get("pre_tokenizer"), decoder])
        suffix = content["model"].get("end_of_word_suffix") or decoder.get("suffix") or ""
        added = self._library.get_added_tokens_decoder()
        for text, token in self._library.get_vocab(with_added_tokens=True).items():
            if token not in added:
                counts[token] = _count_bytes(text, stages, suffix)
            elif not added[token].special:
                counts[token] = len(text.encode())
        return counts

    def tokenizer_json(self) -> str:
        """Returns the content of the tokenizer.json, which neither truncates nor pads, as `encode` does not."""
        content = json.loads(self.tokenizer)
        enabled = [key for key in ("truncation", "padding") if content.get(key) is not None]
        if not enabled:
            return self.tokenizer
        return json.dumps(content | dict.fromkeys(enabled))

    def to_json(self) -> dict[str, str | None]:
        """Returns plain values for the record of a run; the tokenizer is compressed."""
        compressed = ""
        if self.tokenizer:
            compressed = base64.b64encode(zlib.compress(self.tokenizer.encode(), 9)).decode()
        return {"end_token": self.end_token, "tokenizer": compressed}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Vocabulary:
        """Reads the result of `to_json`; raises ValueError for anything else."""
        end = content.get("end_token")
        compressed = content.get("tokenizer")
        if not isinstance(end, str | None) or not isinstance(compressed, str):
            raise ValueError("a vocabulary needs end_token and tokenizer")
        if not compressed:
            return cls(end)
        unpacker = zlib.decompressobj()
        try:
            tokenizer = unpacker.decompress(base64.b64decode(compressed), _MAX_TOKENIZER_BYTES).decode()
        except (ValueError, zlib.error) as error:
            raise ValueError("a vocabulary's tokenizer can't be unpacked") from error
        if not unpacker.eof or not tokenizer:
            raise ValueError(f"a vocabulary's tokenizer is cut off, or larger than {_MAX_TOKENIZER_BYTES:,} bytes")
        return cls(end, tokenizer)

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer.from_str(self.tokenizer)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # The text of a special token in a document is text, not the special token.
        tokenizer.encode_special_tokens = True
        return tokenizer


def _count_bytes(token: str, stages: str, suffix: str) -> int:
    """Returns the bytes that a token adds inside a text; `stages` name the kinds of a tokenizer's stages."""
    if suffix and token.endswith(suffix):
        # The suffix ends a word and decodes to one space.
        return _count_bytes(token.removesuffix(suffix), stages, "") + 1
    if "ByteLevel" in stages:
        # Each byte is written as one character.
        return len(token)
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        # SentencePiece's byte fallback, such as <0x0A>.
        return 1
    if "WordPiece" in stages:
        is_word_start = not token.startswith(_WORDPIECE_PREFIX)
        # The decoder writes one space before a token that starts a word.
        return len(token.removeprefix(_WORDPIECE_PREFIX).encode()) + is_word_start
    return len(token.replace(_SENTENCEPIECE_SPACE, " ").encode())
