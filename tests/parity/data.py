"""Made data of the rows, the same on every call."""

from collections.abc import Callable

import numpy as np

from tests.parity.row import TEST, TRAIN, Arrays, Splits

BOTH = TRAIN + TEST


def _split(arrays: Arrays, train: int = TRAIN, test: int = TEST) -> Splits:
    return {
        "train": {name: array[:train] for name, array in arrays.items()},
        "test": {name: array[train : train + test] for name, array in arrays.items()},
    }


def _each(splits: Splits, change: Callable[[Arrays], Arrays]) -> Splits:
    return {name: {**arrays, **change(arrays)} for name, arrays in splits.items()}


def _only(made: Callable[[], Splits], *names: str) -> Callable[[], Splits]:
    """Some arrays of other data."""
    return lambda: {split: {name: arrays[name] for name in names} for split, arrays in made().items()}


def classes(train: int = TRAIN, **more: np.ndarray) -> Splits:
    """Vectors `x` of 6 numbers, of three classes."""
    rng = np.random.default_rng(1)
    label = rng.integers(0, 3, train + TEST).astype("int32")
    x = rng.normal(size=(train + TEST, 6)) + label[:, None] * 0.5
    return _split({"x": x.astype("float32"), **more, "label": label}, train)


def whole_batches() -> Splits:
    """`classes` with 48 training examples: three batches of 16, or six of 8."""
    return classes(48)


def weighted() -> Splits:
    """`classes` with a weight per example, 0 for some."""
    return classes(importance=np.random.default_rng(2).integers(0, 4, BOTH).astype("float32") / 2)


def probabilities() -> Splits:
    """`classes` with one-hot labels."""
    return _each(classes(), lambda arrays: {"label": np.eye(3, dtype="float32")[arrays["label"]]})


def two_classes() -> Splits:
    """Vectors of two classes, with labels as floats, as Keras's binary losses take them."""
    return _each(classes(), lambda arrays: {"label": (arrays["label"] > 0).astype("float32")[:, None]})


def tags() -> Splits:
    """Vectors with any of four labels."""
    x, noise = np.random.default_rng(3).normal(size=(2, BOTH, 6)).astype("float32")
    return _split({"x": x, "label": (x + noise > 0)[:, :4].astype("float32")})


def numbers(offset: float = 0.0, train: int = TRAIN, test: int = TEST) -> Splits:
    """Vectors with a number that is linear in them."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(train + test, 6))
    y = x @ rng.normal(size=6) / 2 + 0.1 * rng.normal(size=train + test)
    return _split({"x": x.astype("float32"), "label": (y + offset).astype("float32")[:, None]}, train, test)


def whole_numbers() -> Splits:
    """`numbers` with 48 training examples."""
    return numbers(train=48)


def many_numbers() -> Splits:
    """`numbers`, 1,600 of each split, near zero: what a random layer adds is half of a linear model's error."""
    return _each(numbers(train=1600, test=1600), lambda arrays: {"label": arrays["label"] / 10})


def far_numbers() -> Splits:
    """`numbers` whose spread is below a millionth of their mean."""
    return numbers(1e6)


def images() -> Splits:
    """Gray images of bytes, of three classes."""
    rng = np.random.default_rng(5)
    label = rng.integers(0, 3, BOTH).astype("int32")
    image = rng.integers(0, 120, (BOTH, 8, 8, 1)) + 60 * label[:, None, None, None]
    return _split({"image": image.astype("uint8"), "label": label})


def float_images() -> Splits:
    """`images` as floats from 0 to 255."""
    return _each(images(), lambda arrays: {"image": arrays["image"].astype("float32")})


def sequences() -> Splits:
    """Sequences of 5 vectors, padded with zeros, of three classes."""
    rng = np.random.default_rng(6)
    label = rng.integers(0, 3, BOTH).astype("int32")
    x = rng.normal(size=(BOTH, 5, 4)) + label[:, None, None] / 2
    x[np.arange(5) >= rng.integers(2, 6, BOTH)[:, None]] = 0
    return _split({"x": x.astype("float32"), "label": label})


def tokens() -> Splits:
    """Rows of 7 tokens, padded with 0, of three classes."""
    rng = np.random.default_rng(7)
    label = rng.integers(0, 3, BOTH).astype("int32")
    found = rng.integers(1, 8, (BOTH, 7)) + 4 * label[:, None]
    found[np.arange(7) >= rng.integers(3, 8, BOTH)[:, None]] = 0
    return _split({"tokens": found.astype("int32"), "label": label})


def tagged_with_weights() -> Splits:
    """Rows of 7 tokens with a class and a weight for each, both 0 for padding."""

    def change(arrays: Arrays) -> Arrays:
        is_token = arrays["tokens"] > 0
        weight = (1 + arrays["tokens"] % 4) * is_token
        return {"label": (arrays["tokens"] % 3 + 1) * is_token, "importance": weight.astype("float32")}

    return _each(tokens(), change)


def table() -> Splits:
    """A number and a kind as an integer, of three classes."""
    rng = np.random.default_rng(9)
    kind = rng.integers(0, 5, BOTH)
    age = rng.uniform(18, 80, BOTH)
    label = (kind % 2 + (age > 50)).astype("int32")
    return _split({"age": age.astype("float32")[:, None], "kind": kind.astype("int32")[:, None], "label": label})


def tickets() -> Splits:
    """Two inputs and two targets."""
    rng = np.random.default_rng(10)
    words, customer = rng.normal(size=(BOTH, 6)), rng.normal(size=(BOTH, 3))
    inputs = {"words": words.astype("float32"), "customer": customer.astype("float32")}
    level = (customer[:, :1] + words[:, :1] / 2).astype("float32")
    return _split({**inputs, "department": words[:, :3].argmax(1).astype("int32"), "level": level})


tagged = _only(tagged_with_weights, "tokens", "label")
ages = _only(table, "age", "label")
kinds = _only(table, "kind", "label")
unlabeled = _only(whole_batches, "x")
