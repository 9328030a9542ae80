"""The layers of `dataset.prepare`, compared with Keras's own on the same values."""

import importlib.util
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from runner.config.schema_data import PrepareConfig
from runner.data import checks_prepare, layers
from runner.data.layers import Strings
from tests.data import keras_layers

missing = [name for name in ("keras", "tensorflow") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")

TEXTS = [
    "The cat sat on the mat.",
    "a Cat, a dog; and THE bird!",
    "",
    "  dog\tdog\u00a0dog\n ",
    "[UNK] it's ÉTÉ été 'quoted' -- a-b_c",
    "the mat the mat",
]
OTHER_TEXTS = ["a new word and the cat", "...", "été cat cat cat mat mat mat bird bird bird"]
CITIES = ["Rome", "Oslo", "Rome", "", "Bern", "Oslo", "Rome", "[UNK]", "Bern", "Kyiv"]
OTHER_CITIES = ["Kyiv", "Rome", "", "Lima", "[UNK]"]


def as_strings(values):
    distinct, codes = np.unique(np.array(values, np.str_), return_inverse=True)
    return Strings(distinct.tolist(), codes)


def ours(name, options, train, other):
    """Returns the layer's results on both lists of values."""
    typed = checks_prepare.options(PrepareConfig(name, ["x"], options))

    def convert(values):
        are_strings = np.asarray(values).dtype.kind == "U"
        return as_strings(values) if are_strings else np.asarray(values)

    state = layers.fit(typed, convert(train))
    return [layers.transform(typed, state, convert(values), "x") for values in (train, other)]


@pytest.fixture(scope="module")
def keras_results():
    """`tests.data.keras_layers.results`, in a process of its own: see `tests.conftest.pytest_runtest_teardown`."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda *arguments, **options: pool.submit(keras_layers.results, *arguments, **options).result()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_tokens": 6, "output_sequence_length": 4},
        {"standardize": None, "output_sequence_length": 9},
        {"standardize": "lower", "ngrams": 2, "output_sequence_length": 12},
        {"standardize": "strip_punctuation", "ngrams": [1, 3], "output_sequence_length": 12},
        {"split": "character", "output_sequence_length": 30},
        {"output_mode": "multi_hot", "max_tokens": 8},
        {"output_mode": "count", "ngrams": 2},
        {"output_mode": "count", "max_tokens": 50, "pad_to_max_tokens": True},
        {"output_mode": "tf_idf", "max_tokens": 8},
        {"output_mode": "tf_idf", "max_tokens": 50, "pad_to_max_tokens": True},
        {"vocabulary": ["cat", "dog", "the"], "output_sequence_length": 5},
    ],
    ids=str,
)
def test_texts_become_the_tokens_of_keras(keras_results, options):
    expected = keras_results("TextVectorization", options, TEXTS, OTHER_TEXTS, as_rows=False)
    actual = ours("TextVectorization", options, TEXTS, OTHER_TEXTS)
    if not options:
        # Keras pads each batch to its own longest text, and a run all examples to the longest of its train split.
        expected[1] = np.pad(expected[1], [(0, 0), (0, 99)])[:, : actual[1].shape[1]]
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count", "tf_idf"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask_token": ""},
        {"max_tokens": 3},
        {"num_oov_indices": 4, "max_tokens": 6},
        {"num_oov_indices": 3, "mask_token": "", "vocabulary": ["Rome", "Bern"]},
    ],
    ids=str,
)
def test_strings_get_the_indices_of_keras(keras_results, mode, options):
    if mode == "tf_idf" and "vocabulary" in options:
        pytest.skip("tf_idf needs a vocabulary of the train split")
    options = options | {"output_mode": mode}
    expected = keras_results("StringLookup", options, CITIES, OTHER_CITIES)
    for mine, theirs in zip(ours("StringLookup", options, CITIES, OTHER_CITIES), expected, strict=True):
        # A column of numbers has no dim of size 1.
        np.testing.assert_allclose(mine, theirs.reshape(mine.shape), rtol=1e-6)


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count", "tf_idf"])
@pytest.mark.parametrize("options", [{}, {"mask_token": 0}, {"num_oov_indices": 3, "max_tokens": 6}], ids=str)
@pytest.mark.parametrize("shape", [(24,), (8, 3)])
def test_integers_get_the_indices_of_keras(keras_results, mode, options, shape):
    options = options | {"output_mode": mode}
    rng = np.random.default_rng(0)
    train = rng.integers(-2, 6, shape).astype(np.int32)
    other = rng.integers(-5, 12, shape).astype(np.int32)
    expected = keras_results("IntegerLookup", options, train, other)
    for mine, theirs in zip(ours("IntegerLookup", options, train, other), expected, strict=True):
        np.testing.assert_allclose(mine, theirs.reshape(mine.shape), rtol=1e-6)
        assert mine.size == theirs.size


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count"])
@pytest.mark.parametrize("options", [{"num_bins": 5}, {"num_bins": 4, "salt": [133, 137]}, {"num_bins": 1}], ids=str)
@pytest.mark.parametrize("kind", ["strings", "integers", "vectors", "fractions"])
def test_values_get_the_bins_of_kerass_hash(keras_results, mode, options, kind):
    rng = np.random.default_rng(0)
    integers = rng.integers(-(10**9), 10**9, 30).astype(np.int32)
    values = {"integers": integers, "vectors": integers.reshape(10, 3), "fractions": rng.normal(0, 50, 30)}.get(kind)
    mask = 0
    if kind == "strings":
        # Every length has a path of its own in the hash.
        values = ["", "Rome", *("Ωx" * length for length in (1, 2, 5, 7, 10, 20, 22, 40, 100)), "a" * 64, "a" * 65]
        mask = "Rome"
    elif kind == "fractions":
        values = values.astype(np.float32)
        values[:3] = 0
    for own in (options, options | {"mask_value": mask}):
        arguments = own | {"output_mode": mode}
        expected = keras_results("Hashing", arguments, values, values[::-1])
        for mine, theirs in zip(ours("Hashing", arguments, values, values[::-1]), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs.reshape(mine.shape))


@pytest.mark.parametrize("options", [{}, {"mean": [1.0], "variance": [4.0]}], ids=str)
@pytest.mark.parametrize("shape", [(50,), (50, 3)])
def test_numbers_are_normalized_as_by_keras(keras_results, options, shape):
    rng = np.random.default_rng(0)
    train = rng.normal(5, 3, shape).astype(np.float32)
    other = rng.normal(0, 9, shape).astype(np.float32)
    arguments = {key: value[0] for key, value in options.items()}
    expected = keras_results("Normalization", arguments, train, other)
    for mine, theirs in zip(ours("Normalization", options, train, other), expected, strict=True):
        # Keras computes in float32, and this in float64.
        np.testing.assert_allclose(mine, theirs.reshape(mine.shape), rtol=1e-5, atol=1e-6)


def test_a_constant_column_is_divided_as_by_keras(keras_results):
    train = np.full((4, 1), 2.0, np.float32)
    other = np.full((4, 1), 3.0, np.float32)
    for mine, theirs in zip(
        ours("Normalization", {}, train, other), keras_results("Normalization", {}, train, other), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count"])
@pytest.mark.parametrize(
    "options", [{"num_bins": 4}, {"num_bins": 7, "epsilon": 0.05}, {"bin_boundaries": [-1.0, 0.0, 2.5]}], ids=str
)
@pytest.mark.parametrize("shape", [(999,), (333, 3)])
def test_numbers_get_the_bins_of_keras(keras_results, mode, options, shape):
    options = options | {"output_mode": mode}
    rng = np.random.default_rng(0)
    train = rng.normal(0, 2, shape).astype(np.float32)
    other = rng.normal(1, 3, shape).astype(np.float32)
    expected = keras_results("Discretization", options, train, other)
    for mine, theirs in zip(ours("Discretization", options, train, other), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs.reshape(mine.shape))


@pytest.mark.parametrize("mode", ["one_hot", "multi_hot", "count"])
@pytest.mark.parametrize("shape", [(20,), (20, 3)])
def test_categories_become_the_vectors_of_keras(keras_results, mode, shape):
    options = {"num_tokens": 5, "output_mode": mode}
    values = np.random.default_rng(0).integers(0, 5, shape).astype(np.int32)
    expected = keras_results("CategoryEncoding", options, values, values)
    for mine, theirs in zip(ours("CategoryEncoding", options, values, values), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs.reshape(mine.shape))
