"""Layers of `dataset.prepare` and their options. Imports no NumPy, so that config errors are reported early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from runner.config.fields import checked, choice, empty_problem, entries, integer, number, stored_path

# Bins and lengths beyond this are typing mistakes, which would fail late, out of memory.
_MOST = 1 << 24

INT = "int"
ONE_HOT = "one_hot"
MULTI_HOT = "multi_hot"
COUNT = "count"
TF_IDF = "tf_idf"
OUTPUT_MODES = (INT, ONE_HOT, MULTI_HOT, COUNT, TF_IDF)


def _order_problem(boundaries: list[float]) -> str | None:
    """Returns what is wrong with the boundaries of bins, or None."""
    if boundaries and boundaries == sorted(set(boundaries)):
        return None
    return "must be at least one number, in increasing order"


def _widths_problem(widths: list[int]) -> str | None:
    """Returns what is wrong with the widths of n-grams, or None."""
    if widths and len(widths) == len(set(widths)):
        return None
    return "must be at least one width, each once"


@dataclass(frozen=True)
class LayerOptions:
    """Base of the options of a layer, which are named after the arguments of the Keras class.

    Attributes:
      reads_strings: whether the layer reads strings.
      reads_numbers: whether it reads numbers.
    """

    reads_strings: ClassVar[bool] = False
    reads_numbers: ClassVar[bool] = True


@dataclass(frozen=True)
class TextVectorization(LayerOptions):
    """Standardizes texts, splits them into tokens and looks these up in a vocabulary.

    Attributes:
      max_tokens: maximum size of the vocabulary, special tokens included; null: no limit.
      standardize: `lower_and_strip_punctuation`, `lower`, `strip_punctuation`, or null (unchanged). Only ASCII letters
        become lowercase, as in Keras.
      split: `whitespace` or `character`.
      ngrams: n: all n-grams of up to n tokens; a list: n-grams of these widths; null: single tokens.
      output_mode: `int`, `multi_hot`, `count` or `tf_idf`.
      output_sequence_length: tokens per example, padded with 0 or truncated; null: those of the longest training
        example.
      pad_to_max_tokens: multi_hot, count, tf_idf: vectors of `max_tokens` entries, even if the vocabulary is smaller.
      vocabulary: tokens in their order, without special tokens; null: the train split's, by frequency.
      vocabulary_file: file with one token per line, instead of `vocabulary`.
    """

    reads_strings: ClassVar[bool] = True
    reads_numbers: ClassVar[bool] = False
    max_tokens: int | None = integer(None, at_least=3, at_most=_MOST, example=20_000)
    standardize: str | None = choice(
        "lower_and_strip_punctuation", "lower_and_strip_punctuation", "lower", "strip_punctuation"
    )
    split: str = choice("whitespace", "whitespace", "character")
    ngrams: list[int] | None = entries(None, at_least=1, whole=_widths_problem, example=[1, 2])
    output_mode: str = choice(INT, INT, MULTI_HOT, COUNT, TF_IDF)
    output_sequence_length: int | None = integer(None, at_least=1, at_most=_MOST, example=200)
    pad_to_max_tokens: bool = False
    vocabulary: list[str] | None = entries(None, whole=empty_problem, example=["good", "bad"])
    vocabulary_file: str | None = stored_path(None, example="words.txt")


@dataclass(frozen=True)
class StringLookup(LayerOptions):
    """Maps strings to their indices in a vocabulary.

    Attributes:
      max_tokens: maximum size of the vocabulary, special tokens included; null: no limit.
      num_oov_indices: indices for strings outside the vocabulary, which are chosen by a hash; 0: they are an error.
      mask_token: string that gets the index 0; null: none.
      oov_token: string that replaces strings outside the vocabulary.
      output_mode: `int`, `one_hot`, `multi_hot`, `count` or `tf_idf`.
      pad_to_max_tokens: vectors of `max_tokens` entries, even if the vocabulary is smaller.
      vocabulary: strings in their order, without special tokens; null: the train split's, by frequency.
      vocabulary_file: file with one string per line, instead of `vocabulary`.
    """

    reads_strings: ClassVar[bool] = True
    reads_numbers: ClassVar[bool] = False
    max_tokens: int | None = integer(None, at_least=2, at_most=_MOST, example=1000)
    num_oov_indices: int = integer(1, at_least=0, at_most=_MOST)
    mask_token: str | None = None
    oov_token: str = "[UNK]"
    output_mode: str = choice(INT, *OUTPUT_MODES)
    pad_to_max_tokens: bool = False
    vocabulary: list[str] | None = entries(None, whole=empty_problem, example=["red", "green"])
    vocabulary_file: str | None = stored_path(None, example="words.txt")


@dataclass(frozen=True)
class IntegerLookup(LayerOptions):
    """Maps integers to their indices in a vocabulary.

    Attributes:
      max_tokens: maximum size of the vocabulary, special tokens included; null: no limit.
      num_oov_indices: indices for integers outside the vocabulary, which are chosen by the remainder; 0: they are an
        error.
      mask_token: integer that gets the index 0; null: none.
      oov_token: integer that replaces integers outside the vocabulary.
      output_mode: `int`, `one_hot`, `multi_hot`, `count` or `tf_idf`.
      pad_to_max_tokens: vectors of `max_tokens` entries, even if the vocabulary is smaller.
      vocabulary: integers in their order, without special tokens; null: the train split's, by frequency.
    """

    max_tokens: int | None = integer(None, at_least=2, at_most=_MOST, example=1000)
    num_oov_indices: int = integer(1, at_least=0, at_most=_MOST)
    mask_token: int | None = None
    oov_token: int = -1
    output_mode: str = choice(INT, *OUTPUT_MODES)
    pad_to_max_tokens: bool = False
    vocabulary: list[int] | None = entries(None, whole=empty_problem, example=[10, 20])


@dataclass(frozen=True)
class Normalization(LayerOptions):
    """Subtracts the mean of each column of the last dim, and divides by its standard deviation.

    Attributes:
      mean: of each column; null: of the train split.
      variance: of each column; null: of the train split.
    """

    mean: list[float] | None = entries(None, whole=empty_problem, example=[0.0])
    variance: list[float] | None = entries(None, at_least=0.0, whole=empty_problem, example=[1.0])


@dataclass(frozen=True)
class Discretization(LayerOptions):
    """Maps numbers to the indices of bins.

    Attributes:
      bin_boundaries: in increasing order; null: quantiles of the train split.
      num_bins: number of bins; null: one more than `bin_boundaries`.
      epsilon: error tolerance of the quantiles.
      output_mode: `int`, `one_hot`, `multi_hot` or `count`.
    """

    bin_boundaries: list[float] | None = entries(None, whole=_order_problem, example=[0.0, 1.0])
    num_bins: int | None = integer(None, at_least=2, at_most=_MOST, example=4)
    # Below this the summary of the data would be as long as the data.
    epsilon: float = number(0.01, at_least=1e-6, below=1.0)
    output_mode: str = choice(INT, INT, ONE_HOT, MULTI_HOT, COUNT)


@dataclass(frozen=True)
class CategoryEncoding(LayerOptions):
    """Encodes integers from 0 as vectors.

    Attributes:
      num_tokens: number of categories.
      output_mode: `one_hot`, `multi_hot` or `count`.
    """

    num_tokens: int = integer(2, at_least=1, at_most=_MOST)
    output_mode: str = choice(MULTI_HOT, ONE_HOT, MULTI_HOT, COUNT)


def _mask_problem(value: object) -> str | None:
    """Returns what is wrong with the mask value of `Hashing`, or None."""
    if value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return None
    return "must be a string, an integer or null"


def _salt_problem(salt: list[int]) -> str | None:
    """Returns what is wrong with the salt of `Hashing`, or None."""
    if len(salt) == 2:
        return None
    return "must be one integer or two"


@dataclass(frozen=True)
class Hashing(LayerOptions):
    """Hashes strings or integers into bins; there is no vocabulary.

    Attributes:
      num_bins: number of bins, that of `mask_value` included.
      mask_value: string or integer that gets the bin 0, which then no other value gets; null: none.
      salt: one or two integers that select another hash (SipHash); null: FarmHash64.
      output_mode: `int`, `one_hot`, `multi_hot` or `count`.
    """

    reads_strings: ClassVar[bool] = True
    num_bins: int = integer(1, at_least=1, at_most=_MOST, example=100)
    mask_value: Any = checked(None, whole=_mask_problem, rule="string, integer or null", example="")
    salt: list[int] | None = entries(None, at_least=0, whole=_salt_problem, example=[133, 137])
    output_mode: str = choice(INT, INT, ONE_HOT, MULTI_HOT, COUNT)


# Name of a layer in `dataset.prepare` -> its options.
LAYERS: dict[str, type[LayerOptions]] = {
    kind.__name__: kind
    for kind in (
        TextVectorization,
        StringLookup,
        IntegerLookup,
        Hashing,
        Normalization,
        Discretization,
        CategoryEncoding,
    )
}
