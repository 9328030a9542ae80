"""Checks of `dataset.prepare`. Imports no NumPy."""

from __future__ import annotations

from typing import Any

from runner.config import values
from runner.config.build import build
from runner.config.schema_data import DatasetConfig, PrepareConfig
from runner.config.schema_prepare import (
    INT,
    LAYERS,
    TF_IDF,
    Discretization,
    Hashing,
    IntegerLookup,
    LayerOptions,
    Normalization,
    StringLookup,
    TextVectorization,
)
from runner.data import places
from runner.errors import DataError, invalid, listed

KEY = "dataset.prepare"
# Special tokens of `TextVectorization`: padding, and tokens outside the vocabulary.
PADDING = ""
OOV = "[UNK]"
# A vocabulary of the largest size with long words; larger files are not a vocabulary.
_MAX_FILE_BYTES = 1 << 30

Lookup = TextVectorization | StringLookup | IntegerLookup


def check(config: DatasetConfig, *, recorded: bool = False) -> None:
    """Checks the layers of preparation.

    Args:
      config: whose single values are checked.
      recorded: a recorded run is resumed or read, whose vocabularies are used.

    Raises:
      ConfigError: an unknown layer or option, an invalid value or combination, or a missing vocabulary file.
    """
    prepared: set[str] = set()
    for index, layer in enumerate(config.prepare):
        key = f"{KEY}[{index}]"
        values.check_name(f"{key}.layer", layer.layer, LAYERS)
        _check_columns(key, layer)
        options = _built(layer, key)
        values.check(options, key)
        if isinstance(options, TextVectorization | StringLookup | IntegerLookup):
            _check_lookup(key, options, recorded=recorded)
        elif isinstance(options, Normalization):
            _check_normalization(key, options)
        elif isinstance(options, Discretization):
            _check_discretization(key, options)
        elif isinstance(options, Hashing) and "num_bins" not in layer.options:
            raise invalid(f"{key}.num_bins", None, problem="must be set", fix="set num_bins: 100")
        for column in layer.columns:
            if not options.reads_numbers and column in prepared:
                raise invalid(
                    key,
                    layer.layer,
                    problem=f"reads strings, but {column} holds numbers after an earlier layer",
                    fix=f"put {layer.layer} first, or prepare another column",
                )
            prepared.add(column)
    _check_standardize(config, prepared)


def options(layer: PrepareConfig) -> LayerOptions:
    """Returns the typed options of a layer that `check` has passed."""
    return _built(layer, layer.layer)


def string_columns(config: DatasetConfig) -> list[str]:
    """Returns the columns whose strings a layer reads, which are therefore no categories."""
    columns: dict[str, None] = {}
    for layer in config.prepare:
        if LAYERS[layer.layer].reads_strings:
            columns |= dict.fromkeys(layer.columns)
    return list(columns)


def prepared_columns(config: DatasetConfig) -> list[str]:
    """Returns the columns that some layer replaces."""
    columns: dict[str, None] = {}
    for layer in config.prepare:
        columns |= dict.fromkeys(layer.columns)
    return list(columns)


def special_tokens(options: Lookup) -> tuple[int, int]:
    """Returns how many mask tokens and how many OOV tokens precede the vocabulary.

    Only integers have an index for the mask token: vectors leave it out.
    """
    is_masked = isinstance(options, TextVectorization) or options.mask_token is not None
    masks = 0
    if is_masked and options.output_mode == INT:
        masks = 1
    oov = 1
    if not isinstance(options, TextVectorization):
        oov = options.num_oov_indices
    return masks, oov


def _built(layer: PrepareConfig, key: str) -> LayerOptions:
    arguments: dict[str, Any] = dict(layer.options)
    salt = arguments.get("salt")
    # Like Keras: one integer is both numbers of the salt.
    if isinstance(salt, int) and not isinstance(salt, bool):
        arguments["salt"] = [salt, salt]
    ngrams = arguments.get("ngrams")
    # Like Keras: a number means all widths up to it. True is an integer to Python, but no width.
    if isinstance(ngrams, int) and not isinstance(ngrams, bool):
        if ngrams < 1:
            raise invalid(f"{key}.ngrams", ngrams, problem="must be at least 1", fix="set ngrams: 2")
        arguments["ngrams"] = list(range(1, ngrams + 1))
    return build(LAYERS[layer.layer], arguments, key)


def _check_columns(key: str, layer: PrepareConfig) -> None:
    if not layer.columns or not all(layer.columns):
        problem = "must name at least one array of the dataset"
        raise invalid(f"{key}.columns", layer.columns, problem=problem, fix="write column: review there")
    if len(set(layer.columns)) != len(layer.columns):
        raise invalid(f"{key}.columns", layer.columns, problem="names an array twice", fix="name each once")


def _check_lookup(key: str, options: Lookup, *, recorded: bool) -> None:
    masks, oov = special_tokens(options)
    if options.max_tokens is not None and options.max_tokens <= masks + oov:
        problem = f"must be more than the {masks + oov} special tokens"
        fix = f"set max_tokens: {masks + oov + 1} or more"
        raise invalid(f"{key}.max_tokens", options.max_tokens, problem=problem, fix=fix)
    if options.pad_to_max_tokens and (options.max_tokens is None or options.output_mode == INT):
        problem = "needs max_tokens and an output_mode of vectors"
        raise invalid(f"{key}.pad_to_max_tokens", True, problem=problem, fix="remove pad_to_max_tokens")
    if isinstance(options, TextVectorization) and options.output_mode != INT:
        length = options.output_sequence_length
        if length is not None:
            problem = f"must be null with output_mode={options.output_mode}"
            raise invalid(f"{key}.output_sequence_length", length, problem=problem, fix="remove it")
    _check_vocabulary(key, options, recorded=recorded)


def _check_vocabulary(key: str, options: Lookup, *, recorded: bool) -> None:
    file = None
    if not isinstance(options, IntegerLookup):
        file = options.vocabulary_file
    has_vocabulary = options.vocabulary is not None or file is not None
    if has_vocabulary and options.output_mode == TF_IDF:
        problem = "tf_idf counts documents of the train split, so it needs a vocabulary from there"
        raise invalid(f"{key}.output_mode", TF_IDF, problem=problem, fix="remove the vocabulary, or set multi_hot")
    if file is None:
        if options.vocabulary is not None:
            check_tokens(f"{key}.vocabulary", options, options.vocabulary)
        return
    file_key = f"{key}.vocabulary_file"
    if options.vocabulary is not None:
        raise invalid(file_key, file, problem="can't be combined with vocabulary", fix="remove one of them")
    if not recorded:
        check_tokens(file_key, options, read_vocabulary(file_key, file))


def read_vocabulary(key: str, file: str) -> list[str]:
    """Returns the lines of a vocabulary file.

    Raises:
      ConfigError: it can't be read, or is not UTF-8.
    """
    try:
        path = places.local(file)
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise invalid(key, file, problem="is larger than 1 GiB", fix="name a file with one token per line")
        # Only `\n` ends a line, as TensorFlow reads the file for Keras; a token may have other separators.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, ValueError, DataError) as error:
        fix = "name a file with one token per line, in UTF-8"
        raise invalid(key, file, problem=f"can't be read ({type(error).__name__})", fix=fix) from error
    if lines[-1] == "":
        lines.pop()
    return lines


def check_tokens(key: str, options: Lookup, tokens: list[Any]) -> None:
    """Checks a vocabulary of the user.

    Raises:
      ConfigError: it is empty, repeats a token, has the mask token, or is larger than `max_tokens`.
    """
    value = f"{len(tokens)} tokens"
    if not tokens:
        raise invalid(key, value, problem="must not be empty", fix="add tokens, or remove it")
    if len(set(tokens)) != len(tokens):
        raise invalid(key, value, problem="must have each token once", fix="remove the repeated ones")
    mask: object = PADDING
    if not isinstance(options, TextVectorization):
        mask = options.mask_token
    if mask is not None and mask in tokens:
        problem = f"must not have the mask token {mask!r}, which is added"
        raise invalid(key, value, problem=problem, fix="remove it")
    size = len(tokens) + sum(special_tokens(options))
    if options.max_tokens is not None and size > options.max_tokens:
        problem = f"has {size} tokens with the special ones, more than max_tokens={options.max_tokens}"
        raise invalid(key, value, problem=problem, fix=f"set max_tokens: {size}")


def _check_normalization(key: str, options: Normalization) -> None:
    mean = options.mean
    variance = options.variance
    if mean is None and variance is None:
        return
    if mean is None or variance is None or len(mean) != len(variance):
        fix = "set both with one number per column, or remove both"
        raise invalid(f"{key}.mean", mean, problem="must have as many numbers as variance", fix=fix)


def _check_discretization(key: str, options: Discretization) -> None:
    if (options.num_bins is None) == (options.bin_boundaries is None):
        problem = "exactly one of num_bins and bin_boundaries must be set"
        raise invalid(f"{key}.num_bins", options.num_bins, problem=problem, fix="set num_bins: 4")


def _check_standardize(config: DatasetConfig, prepared: set[str]) -> None:
    if not isinstance(config.standardize, list):
        return
    twice = [name for name in config.standardize if name in prepared]
    if twice:
        raise invalid(
            "dataset.standardize",
            config.standardize,
            problem=f"must not name {listed(twice)}, which {KEY} prepares",
            fix="remove it from one of them",
        )
