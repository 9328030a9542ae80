"""Preparation of single arrays with the results of Keras's preprocessing layers, in NumPy.

Each layer is a pair of functions: `fit` returns what it learns from the train split, as plain values that a run
records, and `transform` applies them. The formulas are those of `keras.layers` (Keras 3), with which
`tests/data/test_layers.py` compares them.

Shapes: N examples, K entries of a vector, T tokens, V entries of a vocabulary with its special tokens.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.config.schema_prepare import (
    COUNT,
    INT,
    MULTI_HOT,
    ONE_HOT,
    TF_IDF,
    CategoryEncoding,
    Discretization,
    Hashing,
    IntegerLookup,
    LayerOptions,
    Normalization,
    StringLookup,
    TextVectorization,
)
from runner.data.base import Array
from runner.data.checks_prepare import KEY, OOV, PADDING, Lookup, check_tokens, read_vocabulary, special_tokens
from runner.data.hashing import bucket
from runner.errors import DataError

# What a layer learns, as values of JSON.
State = Mapping[str, Any]

# Index of a token that vectors leave out: the mask token.
_LEFT_OUT = -1
# Keras's `epsilon()`, the smallest standard deviation.
_EPSILON = 1e-7
_PUNCTUATION = string.punctuation.encode()


@dataclass(frozen=True, eq=False)
class Strings:
    """A column of strings.

    Attributes:
      values: the distinct strings.
      codes: integers (N,), the index in `values` of each example.
    """

    values: Sequence[str]
    codes: Array

    def counts(self) -> list[tuple[str, int]]:
        """Returns the strings that some example has, with their numbers of examples."""
        numbers = np.bincount(self.codes, minlength=len(self.values))
        pairs = zip(self.values, numbers.tolist(), strict=True)
        return [(value, count) for value, count in pairs if count]


Values = Array | Strings


def fit(options: LayerOptions, values: Values) -> State:
    """Returns what a layer learns from the train split's values.

    Args:
      options: of the layer, checked.
      values: (N,) or (N, K); strings for a layer that reads them.

    Raises:
      ConfigError: a vocabulary file can't be used.
      DataError: the values can't be used.
    """
    if isinstance(options, TextVectorization):
        assert isinstance(values, Strings)
        return _fit_text(options, values)
    if isinstance(options, StringLookup):
        assert isinstance(values, Strings)
        return _fit_strings(options, values)
    if isinstance(options, Hashing):
        # A hash learns nothing.
        return {}
    assert isinstance(values, np.ndarray)
    if isinstance(options, IntegerLookup):
        return _fit_integers(options, values)
    if isinstance(options, Normalization):
        return _fit_normalization(options, values)
    if isinstance(options, Discretization):
        return {"bin_boundaries": _boundaries(options, values)}
    return {}


def transform(options: LayerOptions, state: State, values: Values, place: str) -> Array:
    """Returns what a layer makes of values: int32 or float32, the first dim N.

    Args:
      options: of the layer, checked.
      state: from `fit`.
      values: (N,) or (N, K); strings for a layer that reads them.
      place: layer and column, for errors.

    Raises:
      DataError: a value is outside the vocabulary of a layer that has no index for such values.
    """
    if isinstance(values, Strings):
        # Each distinct string once, because texts are slow to split.
        used, codes = np.unique(values.codes, return_inverse=True)
        texts = [values.values[code] for code in used]
        if isinstance(options, TextVectorization):
            table = _transform_texts(options, state, texts)
        elif isinstance(options, Hashing):
            bins = np.array([_bin(options, text, text) for text in texts], np.int64)
            table = encoded(bins, options.output_mode, options.num_bins)
        else:
            assert isinstance(options, StringLookup)
            table = _transform_strings(options, state, texts, place)
        rows: Array = table[codes]
        return rows
    if isinstance(options, IntegerLookup):
        return _transform_integers(options, state, values, place)
    if isinstance(options, Hashing):
        distinct, codes = np.unique(values, return_inverse=True)
        # Keras hashes the digits of a number; fractions are truncated.
        bins = np.array([_bin(options, value, str(int(value))) for value in distinct.tolist()], np.int64)
        return encoded(bins[codes].reshape(values.shape), options.output_mode, options.num_bins)
    if isinstance(options, Normalization):
        deviation = np.maximum(np.sqrt(np.asarray(state["variance"])), _EPSILON)
        normalized: Array = (values.astype(np.float64) - _broadcastable(state["mean"])) / _broadcastable(deviation)
        return normalized.astype(np.float32)
    if isinstance(options, Discretization):
        boundaries = np.asarray(state["bin_boundaries"], np.float32)
        bins = np.digitize(values.astype(np.float32), boundaries)
        return encoded(bins, options.output_mode, len(boundaries) + 1)
    assert isinstance(options, CategoryEncoding)
    if values.size and (values.min() < 0 or values.max() >= options.num_tokens):
        raise DataError(
            f"{place}: values from {values.min()} to {values.max()}, but num_tokens={options.num_tokens} takes 0 to "
            f"{options.num_tokens - 1}; raise num_tokens, or use IntegerLookup"
        )
    return encoded(values, options.output_mode, options.num_tokens)


def _bin(options: Hashing, value: object, text: str) -> int:
    """Returns the bin of a value, which is hashed as a text."""
    is_masked = options.mask_value is not None and options.num_bins > 1
    if not is_masked:
        return bucket(text.encode("utf-8", "replace"), options.num_bins, options.salt)
    if value == options.mask_value:
        return 0
    return 1 + bucket(text.encode("utf-8", "replace"), options.num_bins - 1, options.salt)


def encoded(indices: Array, mode: str, depth: int, idf: Array | None = None) -> Array:
    """Returns indices in an output mode.

    Args:
      indices: (N,) or (N, K); those outside 0 to `depth` - 1 are left out of vectors.
      mode: `int`: the indices, int32. `one_hot`: float32 (N, depth), or (N, K, depth) for K above 1. `multi_hot`,
        `count`, `tf_idf`: float32 (N, depth).
      depth: entries of the vectors.
      idf: tf_idf: float32 (depth,).
    """
    if mode == INT:
        return indices.astype(np.int32)
    is_counted = (indices >= 0) & (indices < depth)
    if mode == ONE_HOT:
        if indices.ndim > 1 and indices.shape[-1] == 1:
            indices = indices[..., 0]
            is_counted = is_counted[..., 0]
        one_hot = np.zeros((*indices.shape, depth), np.float32)
        positions = np.nonzero(is_counted)
        one_hot[(*positions, indices[positions])] = 1.0
        return one_hot
    rows = indices.reshape(len(indices), -1)
    counts = np.zeros((len(rows), depth), np.float32)
    row, position = np.nonzero(is_counted.reshape(rows.shape))
    np.add.at(counts, (row, rows[row, position]), 1.0)
    return _weighted(counts, mode, idf)


def _weighted(counts: Array, mode: str, idf: Array | None) -> Array:
    """Returns counts (N, depth) in one of the modes of counts."""
    if mode == MULTI_HOT:
        return np.minimum(counts, 1.0)
    if mode == COUNT:
        return counts
    assert mode == TF_IDF
    assert idf is not None
    weighted: Array = counts * idf
    return weighted


def tokens_of(text: str, options: TextVectorization) -> list[str]:
    """Returns the tokens of a text: standardized, split, and as n-grams."""
    standardize = options.standardize or ""
    # As bytes, because Keras changes the ASCII characters of UTF-8 only, and splits at ASCII's whitespace.
    content = text.encode("utf-8", "replace")
    if "lower" in standardize:
        content = content.lower()
    if "strip_punctuation" in standardize:
        content = content.translate(None, _PUNCTUATION)
    if options.split == "character":
        tokens = list(content.decode("utf-8"))
    else:
        tokens = [token.decode("utf-8") for token in content.split()]
    if options.ngrams is None:
        return tokens
    ngrams: list[str] = []
    for width in options.ngrams:
        for start in range(len(tokens) - width + 1):
            ngrams.append(" ".join(tokens[start : start + width]))
    return ngrams


def _fit_text(options: TextVectorization, values: Strings) -> State:
    tokens: Counter[Any] = Counter()
    documents: Counter[Any] = Counter()
    longest = 1
    for text, count in values.counts():
        found = tokens_of(text, options)
        longest = max(longest, len(found))
        for token, repetitions in Counter(found).items():
            tokens[token] += repetitions * count
            documents[token] += count
    state = _learned(options, tokens, documents, len(values.codes), (PADDING, OOV))
    if options.output_mode != INT:
        return state
    return {**state, "length": options.output_sequence_length or longest}


def _fit_strings(options: StringLookup, values: Strings) -> State:
    counts: Counter[Any] = Counter(dict(values.counts()))
    return _learned(options, counts, counts, len(values.codes), (options.mask_token, options.oov_token))


def _fit_integers(options: IntegerLookup, values: Array) -> State:
    tokens, counts = np.unique(values, return_counts=True)
    rows = values.reshape(len(values), -1)
    # A document is an example, in which a token counts once.
    in_rows = np.sort(rows, axis=1)
    is_first = np.ones(in_rows.shape, np.bool_)
    is_first[:, 1:] = in_rows[:, 1:] != in_rows[:, :-1]
    distinct, documents = np.unique(in_rows[is_first], return_counts=True)
    return _learned(
        options,
        Counter(dict(zip(tokens.tolist(), counts.tolist(), strict=True))),
        Counter(dict(zip(distinct.tolist(), documents.tolist(), strict=True))),
        len(values),
        (options.mask_token, options.oov_token),
    )


def _learned(
    options: Lookup, tokens: Counter[Any], documents: Counter[Any], size: int, special: Sequence[object]
) -> State:
    """Returns the vocabulary without special tokens, and for tf_idf the weights of all V entries.

    Args:
      options: of the layer.
      tokens: how often the train split has each.
      documents: how many of its examples have each.
      size: N.
      special: the mask token and the OOV token, which are never learned.

    Raises:
      ConfigError: the vocabulary file can't be used.
    """
    if options.vocabulary is not None:
        return {"vocabulary": list(options.vocabulary)}
    if not isinstance(options, IntegerLookup) and options.vocabulary_file is not None:
        key = f"{KEY}.vocabulary_file"
        lines = read_vocabulary(key, options.vocabulary_file)
        check_tokens(key, options, lines)
        return {"vocabulary": lines}
    learned = [token for token in tokens if token not in special]
    # By frequency, and the larger first of equally frequent tokens. Python orders strings by code points, which is
    # the order of their UTF-8 bytes.
    learned.sort(key=lambda token: (tokens[token], token), reverse=True)
    specials = sum(special_tokens(options))
    if options.max_tokens is not None:
        del learned[options.max_tokens - specials :]
    if options.output_mode != TF_IDF:
        return {"vocabulary": learned}
    counts = np.array([documents[token] for token in learned], np.float64)
    idf = np.log(1 + size / (1 + counts)).astype(np.float32)
    mean = 0.0
    if len(idf):
        mean = float(idf.mean())
    weights = [*[mean] * specials, *map(float, idf)]
    return {"vocabulary": learned, "idf": weights}


def _depth(options: Lookup, state: State) -> int:
    """Returns V, or the `max_tokens` that it is padded to."""
    if options.pad_to_max_tokens:
        assert options.max_tokens is not None, "checked with the config"
        return options.max_tokens
    return len(state["vocabulary"]) + sum(special_tokens(options))


def _idf(state: State, depth: int) -> Array | None:
    if "idf" not in state:
        return None
    idf = np.zeros(depth, np.float32)
    idf[: len(state["idf"])] = state["idf"]
    return idf


def _index_of(options: Lookup, state: State, mask: object) -> Callable[[object], int | None]:
    """Returns a function from a token to its index; None for a token outside the vocabulary of a layer without OOV.

    Args:
      options: of the layer; with several indices for such tokens, these are strings.
      state: from `fit`.
      mask: the mask token; None: there is none.
    """
    masks, oov = special_tokens(options)
    indices: dict[object, int] = {}
    for position, token in enumerate(state["vocabulary"]):
        indices[token] = masks + oov + position
    if mask is not None:
        indices[mask] = 0 if masks else _LEFT_OUT
    unknown = masks if oov else None

    def index(token: object) -> int | None:
        known = indices.get(token)
        if known is not None or oov < 2:
            return unknown if known is None else known
        return masks + bucket(str(token).encode("utf-8", "replace"), oov)

    return index


def _transform_texts(options: TextVectorization, state: State, texts: Sequence[str]) -> Array:
    """Returns int32 (N, T), or float32 (N, V)."""
    index_of = _index_of(options, state, PADDING)
    if options.output_mode == INT:
        indices = np.zeros((len(texts), state["length"]), np.int32)
        for row, text in enumerate(texts):
            for position, token in enumerate(tokens_of(text, options)[: state["length"]]):
                index = index_of(token)
                assert index is not None, "the layer has an index for unknown tokens"
                indices[row, position] = index
        return indices
    depth = _depth(options, state)
    counts = np.zeros((len(texts), depth), np.float32)
    for row, text in enumerate(texts):
        for token, count in Counter(tokens_of(text, options)).items():
            index = index_of(token)
            if index is not None and index != _LEFT_OUT:
                # Several tokens share the index of unknown ones.
                counts[row, index] += count
    return _weighted(counts, options.output_mode, _idf(state, depth))


def _transform_strings(options: StringLookup, state: State, texts: Sequence[str], place: str) -> Array:
    index_of = _index_of(options, state, options.mask_token)
    indices = []
    for text in texts:
        index = index_of(text)
        if index is None:
            raise _unknown(place, text)
        indices.append(index)
    depth = _depth(options, state)
    return encoded(np.array(indices), options.output_mode, depth, _idf(state, depth))


def _transform_integers(options: IntegerLookup, state: State, values: Array, place: str) -> Array:
    masks, oov = special_tokens(options)
    vocabulary = np.asarray(state["vocabulary"], np.int64)
    order = np.argsort(vocabulary)
    positions = np.searchsorted(vocabulary[order], values)
    is_known = np.zeros(values.shape, np.bool_)
    indices = np.zeros(values.shape, np.int64)
    if len(vocabulary):
        candidates = order[np.minimum(positions, len(vocabulary) - 1)]
        is_known = vocabulary[candidates] == values
        indices = candidates + masks + oov
    if oov:
        indices = np.where(is_known, indices, np.mod(values, oov) + masks)
        is_known = np.ones(values.shape, np.bool_)
    if options.mask_token is not None:
        is_mask = values == options.mask_token
        indices = np.where(is_mask, 0 if masks else _LEFT_OUT, indices)
        is_known = is_known | is_mask
    if not is_known.all():
        raise _unknown(place, int(values[~is_known].flat[0]))
    depth = _depth(options, state)
    return encoded(indices, options.output_mode, depth, _idf(state, depth))


def _unknown(place: str, token: object) -> DataError:
    return DataError(
        f"{place}: {token!r} is not in the vocabulary of the train split, and num_oov_indices is 0; set "
        "num_oov_indices: 1, or remove those examples"
    )


def _fit_normalization(options: Normalization, values: Array) -> State:
    columns = 1 if values.ndim == 1 else values.shape[-1]
    if options.mean is not None and options.variance is not None:
        if len(options.mean) not in (1, columns):
            raise DataError(f"{KEY}: Normalization has {len(options.mean)} means, but the array has {columns} columns")
        return {"mean": options.mean, "variance": options.variance}
    table = values.astype(np.float64).reshape(-1, columns)
    return {"mean": table.mean(0).tolist(), "variance": table.var(0).tolist()}


def _broadcastable(numbers: Sequence[float] | Array) -> Array:
    """Returns a scalar for one number, else one number per column."""
    array = np.asarray(numbers, np.float64)
    if len(array) == 1:
        scalar: Array = array[0]
        return scalar
    return array


def _boundaries(options: Discretization, values: Array) -> list[float]:
    """Returns the boundaries of bins of about equal numbers of values.

    A summary of about 1 / epsilon of the sorted values, each standing for as many values, is interpolated at the
    quantiles of the bins, twice, as Keras does for data that comes at once.
    """
    if options.bin_boundaries is not None:
        return options.bin_boundaries
    assert options.num_bins is not None, "checked with the config"
    ordered = np.sort(values.astype(np.float32).reshape(-1))
    step = max(len(ordered) * 1.0 / (1.0 / options.epsilon), 1)
    points = ordered[int(step - 1) :: int(step)]
    weights = np.full(len(points), step, np.float32)
    points, weights = _compressed(points, weights, options.epsilon)
    points, _ = _compressed(points, weights, 1.0 / options.num_bins)
    return [float(point) for point in points[:-1]]


def _compressed(points: Array, weights: Array, epsilon: float) -> tuple[Array, Array]:
    """Returns a summary of 1 / epsilon points of another one, float32, if it has more.

    Args:
      points: float32 (n,), in order.
      weights: float32 (n,), how many values each point summarizes.
      epsilon: distance of the quantiles.
    """
    if len(points) * epsilon < 1:
        return points, weights
    quantiles = epsilon + np.arange(0.0, 1.0, epsilon)
    totals = weights.cumsum()
    shares = totals / totals[-1]
    new_points = np.interp(quantiles, shares, points)
    new_totals = np.interp(quantiles, shares, totals)
    new_weights = np.diff(new_totals, prepend=0.0)
    return new_points.astype(np.float32), new_weights.astype(np.float32)
