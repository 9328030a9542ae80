"""`dataset=mixture`: parts in given proportions, as a function of seed and position."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data import loading
from runner.data.base import Array, ArraySource, ArraySpec, Dataset, Draw
from runner.data.sources.mixture import Mixture
from runner.data.workers import Workers
from runner.errors import ConfigError, DataError
from tests.data.conftest import opened
from tests.data.pictures import encoded, picture
from tests.data.texts import saved

SPECS = {"x": ArraySpec((), "int32")}


pytestmark = pytest.mark.usefixtures("inside")


def mixture(sizes: list[int], weights: list[float]) -> Mixture:
    pieces = []
    for part, size in enumerate(sizes):
        source = ArraySource({"x": np.arange(size, dtype=np.int32) + 1000 * part}, SPECS)
        pieces.append((source, np.arange(size)))
    return Mixture(pieces, SPECS, weights)


def drawn(source: Mixture, epochs: int, seed: int = 3, shuffle: bool = True) -> list[Array]:
    """Returns the values of each epoch, of which the thousands tell the part."""
    return [source.read(source.epoch_order(Draw(seed, epoch, shuffle)))["x"] for epoch in range(epochs)]


parts = st.lists(st.tuples(st.integers(1, 40), st.floats(0.2, 5.0)), min_size=2, max_size=4)


@given(parts=parts, seed=st.integers(0, 100), shuffle=st.booleans())
@example(parts=[(1, 2.0703125), (6, 4.0703125), (40, 0.703125), (40, 3.8125)], seed=16, shuffle=True)
def test_parts_have_their_shares_and_repeat_an_example_after_all_others(
    parts: list[tuple[int, float]], seed: int, shuffle: bool
) -> None:
    sizes = [size for size, _ in parts]
    weights = [weight for _, weight in parts]
    source = mixture(sizes, weights)
    shares = np.array(weights) / sum(weights)
    if min(shares) * source.size < 2:
        with pytest.raises(ConfigError, match="fewer than 2 of the"):
            source.check(["dataset.parts[0]"] * len(parts))
        return
    epochs = drawn(source, 4, seed, shuffle)
    assert [len(epoch) for epoch in epochs] == [sum(sizes)] * 4
    for epoch in epochs:
        # Even spread: at every position of the epoch.
        counts = np.cumsum(epoch[:, None] // 1000 == np.arange(len(parts)), axis=0)
        expected = np.arange(1, len(epoch) + 1)[:, None] * shares
        # A part's number in an epoch comes of four roundings of up to 0.5 each.
        assert (np.abs(counts - expected) <= 3 + shares * len(parts)).all()
    whole = np.concatenate(epochs)
    for part, size in enumerate(sizes):
        own = whole[whole // 1000 == part] - 1000 * part
        # Rounding does not add up over epochs.
        assert abs(len(own) - shares[part] * len(whole)) <= 1
        for start in range(0, len(own), size):
            one_pass = own[start : start + size]
            assert len(set(one_pass.tolist())) == len(one_pass)
        if not shuffle:
            assert own.tolist() == [number % size for number in range(len(own))]


def test_the_order_is_a_function_of_seed_and_epoch_and_parts_differ() -> None:
    source = mixture([50, 50], [1.0, 1.0])
    first, second = drawn(source, 2)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, drawn(source, 1, seed=4)[0])
    # Without another epoch before it.
    assert np.array_equal(second, source.read(mixture([50, 50], [1.0, 1.0]).epoch_order(Draw(3, 1)))["x"])
    own = [first[first // 1000 == part] % 1000 for part in range(2)]
    assert not np.array_equal(*own)
    # An epoch has every example of parts of equal size and weight.
    assert sorted(first.tolist()) == [*range(50), *range(1000, 1050)]


def write(name: str, size: int, first: int = 0) -> None:
    rows = np.arange(size) + first
    np.savez(name, x=np.stack([rows, -rows], 1).astype(np.float32), label=rows % 2)


def read(entries: list[dict[str, object]], **keys: object) -> Dataset:
    return opened(**({"name": "mixture", "parts": entries, "test": None} | keys))


def two(**keys: object) -> list[dict[str, object]]:
    write("a.npz", 50)
    write("b.npz", 30, first=1000)
    return [
        {"name": "arrays", "path": "a.npz", "weight": 0.75},
        {"name": "arrays", "path": "b.npz", "weight": 0.25, **keys},
    ]


def values_of(source: object) -> list[int]:
    read_rows = source.read(np.arange(source.size))  # type: ignore[attr-defined]
    return sorted(read_rows["x"][:, 0].astype(int).tolist())


def test_evaluations_have_every_example_of_the_parts_once() -> None:
    data = read(two())
    assert (data.train.size, data.test.size) == (40 + 24, 10 + 6)
    assert sorted(values_of(data.train) + values_of(data.test)) == [*range(50), *range(1000, 1030)]
    assert data.validation is None
    assert data.selection["train"] == "a mixture: 75% a.npz, 25% b.npz"
    # The test examples are those that each part has alone.
    alone = loading.load(DatasetConfig(name="arrays", path="a.npz", test=None))
    assert set(values_of(alone.test)) <= set(values_of(data.test))


def test_the_digest_is_of_the_data_and_its_selection_and_not_of_the_weights() -> None:
    entries = two()
    first = read(entries).digest
    assert read([{**entries[0], "weight": 5}, entries[1]]).digest == first
    assert read([entries[1], entries[0]]).digest != first
    assert read([{**entries[0], "train": "train[:9]"}, entries[1]]).digest != first
    write("a.npz", 51)
    assert read(entries).digest != first


def test_standardization_uses_the_statistics_of_all_parts() -> None:
    plain, scaled = read(two()), read(two(), standardize=True)
    rows = np.arange(plain.train.size)
    whole = plain.train.read(rows)["x"].astype(np.float64)
    expected = (whole - whole.mean(0)) / whole.std(0)
    np.testing.assert_allclose(scaled.train.read(rows)["x"], expected, rtol=1e-5, atol=1e-6)
    for epoch in range(2):
        orders = [data.train.epoch_order(Draw(7, epoch)) for data in (plain, scaled)]
        assert np.array_equal(*orders)
    assert len(np.unique(orders[0])) < len(rows), "the weights repeat examples of the first part"


def test_images_of_files_and_of_arrays_are_mixed_and_augmented() -> None:
    pictures = [picture(6, 5, seed=row) for row in range(12)]
    files = [encoded(pixels, "PNG") for pixels in pictures]
    pq.write_table(pa.table({"image": files, "label": [0, 1] * 6}), "a.parquet", row_group_size=4)
    np.savez("b.npz", image=np.stack(pictures), label=np.arange(12) % 2)
    entries: list[dict[str, object]] = [{"name": "parquet", "path": "a.parquet"}]
    entries.append({"name": "arrays", "path": "b.npz", "train": "train[3:]"})
    with Workers(DatasetConfig(workers=2)) as workers:
        data = read(entries)
        reader = workers.reader(data.train)
        rows = reader.source.epoch_order(Draw(0, 0))
        assert np.array_equal(rows, data.train.epoch_order(Draw(0, 0)))
        assert np.array_equal(reader.read(0, rows)["image"], data.train.read(rows)["image"])
        flipped = read(entries, augment=[AugmentConfig("flip", options={"probability": 1.0})])
        found = workers.reader(flipped.train).read(0, rows)["image"]
        assert np.array_equal(found, data.train.read(rows)["image"][:, :, ::-1])


def test_texts_of_all_parts_need_one_tokenizer() -> None:
    for name in ("a", "b"):
        Path(name).mkdir()
        for number in range(20):
            Path(name, f"{number}.txt").write_text(f"{name} is number {number}. " * 40)
    keys = {"name": "text", "tokenizer": saved(Path("a.json")), "sequence_length": 16, "data_dir": "tokens"}
    data = read([{**keys, "path": "a"}, {**keys, "path": "b", "weight": 2}])
    with pytest.raises(ConfigError, match=r"dataset.parts\[1\].tokenizer=b.json: all parts need one tokenizer"):
        read([{**keys, "path": "a"}, {**keys, "path": "b", "tokenizer": saved(Path("b.json"), 280)}])
    with pytest.raises(ConfigError, match=r"dataset.parts\[1\].end_token=x: all parts need one end_token"):
        read([{**keys, "path": "a"}, {**keys, "path": "b", "tokenizer": "bytes", "end_token": "x"}])
    assert data.vocabulary is not None
    alone = loading.load(DatasetConfig(**{**keys, "path": "a"}, test=None))  # type: ignore[arg-type]
    assert data.vocabulary == alone.vocabulary
    assert data.texts["train"].tokens > alone.texts["train"].tokens
    rows = data.train.epoch_order(Draw(0, 0))
    text = [data.vocabulary.decode(row.tolist()) for row in data.train.read(rows[:60])["tokens"]]
    of_second = sum("b is" in row for row in text)
    assert 35 <= of_second <= 45


@pytest.mark.parametrize(
    ("change", "keys", "problem"),
    [
        ({}, {"parts": [{"path": "a.npz"}]}, "must be a list of mappings, each with a name"),
        ({"weight": 0}, {}, "dataset.parts[1].weight=0: must be a number above 0"),
        ({"weight": 0.001}, {}, "dataset.parts[1].weight=0.001: gives the part fewer than 2 of the 64 examples"),
        ({"name": "mixture"}, {}, "dataset.parts[1].name=mixture: a part can't be a mixture"),
        ({"batch_size": 8}, {}, "dataset.parts[1].batch_size=8: is a key of the whole mixture, not of a part"),
        ({"paht": "b"}, {}, "dataset.parts[1].paht: unknown key"),
        ({"features": ["nope"]}, {}, "dataset.parts[1].features=nope: unknown column"),
        ({}, {"holdout": 0.1}, "dataset.holdout=0.1: can't be set for a mixture"),
        ({}, {"path": "a.npz"}, "dataset=mixture has no such key"),
        ({}, {"name": "arrays", "path": "a.npz"}, "dataset=arrays has no such key; remove dataset.parts"),
    ],
)
def test_invalid_parts_are_rejected(change: dict[str, object], keys: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(**({"entries": two(**change)} | keys))  # type: ignore[arg-type]
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_parts_with_other_arrays_are_errors() -> None:
    entries = two()
    np.savez("b.npz", x=np.ones((30, 3), np.float32), label=np.arange(30) % 2)
    with pytest.raises(DataError, match=r"parts\[1\] \(b.npz\): array x is float32 \[3\], but float32 \[2\] in"):
        read(entries)
    np.savez("b.npz", x=np.ones((30, 2), np.float32), kind=["a", "b", "c"] * 10)
    with pytest.raises(DataError, match=r"array label is missing, but int32 \[\] in dataset.parts\[0\]"):
        read(entries)
