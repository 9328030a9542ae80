"""Byte-level BPE tokenizers, trained with the library `tokenizers`.

Sources: Gage, 1994; Sennrich et al., 2016, arXiv:1508.07909.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.schema_data import MOST_TOKENS
from runner.data.checks_text import END_TOKEN
from runner.data.vocabulary import BPE, Vocabulary
from runner.errors import describe, invalid
from runner.host import cores
from runner.host.late import late

if TYPE_CHECKING:
    import tokenizers
else:
    tokenizers = late("tokenizers")

# Special tokens that a message lists.
_SHOWN_TOKENS = 5


def limit_threads() -> None:
    """Limits the library to this run's cores; before its first use and before starting processes."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(cores.available()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def train(texts: Iterable[str], size: int, end_token: str | None) -> Vocabulary:
    """Trains a tokenizer; the result depends on the texts only, not on the machine."""
    limit_threads()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    # As in GPT-2: every byte has a token and merges stay inside words, so decoding restores every text exactly.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special_tokens = []
    if end_token is not None:
        special_tokens.append(end_token)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special_tokens,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Vocabulary(BPE, end_token, tokenizer.to_str())


def read(path: Path, end_token: str | None) -> Vocabulary:
    """Reads a user's tokenizer.json."""
    limit_threads()
    try:
        vocabulary = Vocabulary(BPE, end_token, path.read_text("utf-8"))
        size = vocabulary.size
        is_end_known = end_token is None or vocabulary.end is not None
    # The library tokenizers raises bare exceptions.
    except Exception as error:
        raise invalid(
            "dataset.tokenizer",
            path,
            problem=f"must be a tokenizer.json that the library tokenizers can read ({describe(error)})",
            fix="use another file, or set dataset.tokenizer=bpe",
        ) from error
    if size > MOST_TOKENS:
        raise invalid(
            "dataset.tokenizer",
            path,
            problem=f"must have at most {MOST_TOKENS:,} tokens, but its largest is {size - 1:,}",
            fix="use another file, or set dataset.tokenizer=bpe",
        )
    if not is_end_known:
        special = ", ".join(vocabulary.special[:_SHOWN_TOKENS]) or "none"
        raise invalid(
            "dataset.end_token",
            end_token,
            problem=f"must be one of the {size:,} tokens of {path} (its special tokens: {special})",
            fix="use one of its tokens, or remove dataset.end_token",
        )
    check_end(vocabulary)
    return vocabulary


def check_end(vocabulary: Vocabulary) -> None:
    """Checks that no text is encoded as the end token, which decoding would drop."""
    if vocabulary.end_is_text:
        raise invalid(
            "dataset.end_token",
            vocabulary.end_token,
            problem="must be a token that no text is encoded as, but this tokenizer uses it for a piece of text",
            fix=f"set {END_TOKEN}, or use a special token of the tokenizer",
        )
