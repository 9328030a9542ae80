"""Byte pair encodings (Gage, 1994; Sennrich et al., 2016, arXiv:1508.07909) of bytes, trained by `tokenizers`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from runner.data.checks_text import END_TOKEN, MOST_TOKENS
from runner.data.vocabulary import BPE, Vocabulary
from runner.errors import describe, invalid
from runner.host import cores
from runner.host.late import late

if TYPE_CHECKING:
    import tokenizers
else:
    tokenizers = late("tokenizers")


def settle_threads() -> None:
    """Has the library take this run's share of the cores; before its first use, and for processes started later."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(cores.available()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def trained(texts: Iterable[str], size: int, end_token: str | None) -> Vocabulary:
    """Trains one, the same for the same texts on every machine.

    Args:
      texts: read once, as a stream.
      size: tokens at most; fewer where the texts have fewer pairs.
      end_token: see `Vocabulary`; one of the tokens.
    """
    settle_threads()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    # As GPT-2's: bytes by characters of their own, pairs within words; nothing is lost, so text is had back exactly.
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[] if end_token is None else [end_token],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return Vocabulary(BPE, end_token, made.to_str())


def read(path: Path, end_token: str | None) -> Vocabulary:
    """Reads a user's tokenizer.json.

    Raises:
      ConfigError: it can't be read, has too many tokens, or has no such `end_token` that is not text too.
    """
    settle_threads()
    try:
        found = Vocabulary(BPE, end_token, path.read_text("utf-8"))
        size = found.size
        known = end_token is None or found.end is not None
    except Exception as error:  # the library raises bare exceptions
        raise invalid(
            "dataset.tokenizer",
            path,
            problem=f"a tokenizer.json that tokenizers reads, and this is none ({describe(error)})",
            fix="give another, or set dataset.tokenizer=bpe",
        ) from error
    if size > MOST_TOKENS:
        raise invalid(
            "dataset.tokenizer",
            path,
            problem=f"at most {MOST_TOKENS:,} tokens, and the largest of this one is {size - 1:,}",
            fix="give another, or set dataset.tokenizer=bpe",
        )
    if not known:
        special = ", ".join(found.special[:5]) or "none"
        raise invalid(
            "dataset.end_token",
            end_token,
            problem=f"one of the {size:,} tokens of {path}, whose special ones are {special}",
            fix="name one, or leave it out",
        )
    check_end(found)
    return found


def check_end(vocabulary: Vocabulary) -> None:
    """Checks that no text is encoded as the end of a document.

    Raises:
      ConfigError: one is, and would not be had back.
    """
    if vocabulary.end_is_text:
        raise invalid(
            "dataset.end_token",
            vocabulary.end_token,
            problem="what no text is encoded as, and this tokenizer has it for a piece of text",
            fix=f"set {END_TOKEN}, or to a special token of the tokenizer",
        )
