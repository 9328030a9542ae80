"""Made data of the examples: small arrays that a model can learn, the same on every call."""

import numpy as np

from tests.keras_examples.spec import Arrays, by_split

COUNT = 96


def images(classes: int = 4, size: int = 16, channels: int = 1) -> dict[str, Arrays]:
    """Noisy images, (size, size, channels), whose brightness and a bright corner are the class."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, classes, COUNT).astype("int32")
    image = rng.normal(label[:, None, None, None] / classes, 0.3, (COUNT, size, size, channels))
    image[:, : size // 2, : size // 2] += (label % 2)[:, None, None, None]
    return by_split({"image": image.astype("float32"), "label": label})


def masks(size: int = 16, classes: int = 3) -> dict[str, Arrays]:
    """Images of a bright square, with the class of each pixel: outside, edge, inside."""
    rng = np.random.default_rng(1)
    rows, columns = np.mgrid[:size, :size]
    center = rng.integers(size // 4, 3 * size // 4, (COUNT, 2, 1, 1))
    distance = np.maximum(abs(rows - center[:, 0]), abs(columns - center[:, 1]))
    mask = (distance < size // 4).astype("int32") + (distance < size // 4 - 1)
    image = rng.normal(mask[..., None] / 2, 0.2, (COUNT, size, size, 3)).astype("float32")
    return by_split({"image": image, "mask": np.minimum(mask, classes - 1).astype("int32")})


def texts(classes: int = 2, length: int = 32, vocabulary: int = 64) -> dict[str, Arrays]:
    """Texts as token numbers, padded with 0; the words of a class are more frequent in it."""
    rng = np.random.default_rng(2)
    label = rng.integers(0, classes, COUNT).astype("int32")
    share = vocabulary // (classes + 1)
    tokens = rng.integers(1, 2 * share, (COUNT, length)) + share * label[:, None]
    tokens = np.minimum(tokens, vocabulary - 1)
    words = rng.integers(length // 2, length + 1, COUNT)
    tokens[np.arange(length) >= words[:, None]] = 0
    return by_split({"tokens": tokens.astype("int32"), "label": label})


def sentences(length: int = 24, vocabulary: int = 32) -> dict[str, Arrays]:
    """Rows of tokens in which each depends on the one before, and the token that follows each."""
    rng = np.random.default_rng(3)
    rows = np.zeros((COUNT, length + 1), "int32")
    rows[:, 0] = rng.integers(1, vocabulary, COUNT)
    for step in range(length):
        rows[:, step + 1] = (3 * rows[:, step] + rng.integers(0, 2, COUNT)) % (vocabulary - 1) + 1
    return by_split({"tokens": rows[:, :-1], "label": rows[:, 1:]})


def pairs(length: int = 10, vocabulary: int = 24) -> dict[str, Arrays]:
    """Source sequences and their reversals from a start token (1), each with the next token, to an end token (2).

    Rows are padded with 0, which has no weight.
    """
    rng = np.random.default_rng(4)
    source = rng.integers(3, vocabulary, (COUNT, length)).astype("int32")
    target = np.zeros((COUNT, length + 3), "int32")
    target[:, 0] = 1
    for row, words in enumerate(rng.integers(length // 2, length + 1, COUNT)):
        source[row, words:] = 0
        target[row, 1 : words + 1] = source[row, :words][::-1]
        target[row, words + 1] = 2
    label = target[:, 1:]
    weight = (label > 0).astype("float32")
    return by_split({"source": source, "target": target[:, :-1], "label": label, "label_weight": weight})


def series(classes: int = 2, length: int = 32, channels: int = 1) -> dict[str, Arrays]:
    """Waves, (length, channels), whose frequency is the class."""
    rng = np.random.default_rng(5)
    label = rng.integers(0, classes, COUNT).astype("int32")
    time = np.arange(length) * (1 + label[:, None]) / 4
    wave = np.sin(time + 6 * rng.random((COUNT, 1)))[..., None]
    noisy = wave + rng.normal(0, 0.1, (COUNT, length, channels))
    return by_split({"series": noisy.astype("float32"), "label": label})


def columns(numbers: int = 5, kinds: int = 8, classes: int = 2) -> dict[str, Arrays]:
    """A table: columns of numbers, two of categories as numbers, and a class that depends on both."""
    rng = np.random.default_rng(6)
    values = rng.normal(size=(COUNT, numbers)).astype("float32")
    kind = rng.integers(0, kinds, (COUNT, 2)).astype("int32")
    label = (values[:, 0] > 0).astype("int32") + (kind[:, 0] > kinds // 2)
    return by_split({"numbers": values, "kind": kind, "label": np.minimum(label, classes - 1).astype("int32")})


def ratings(users: int = 16, movies: int = 24, scale: float = 1.0) -> dict[str, Arrays]:
    """Users, movies and the rating from 0 to `scale` that one gave the other."""
    rng = np.random.default_rng(7)
    user = rng.integers(0, users, COUNT).astype("int32")
    movie = rng.integers(0, movies, COUNT).astype("int32")
    taste = (user[:, None] + movie[:, None]) % 5 / 4
    return by_split({"user": user[:, None], "movie": movie[:, None], "rating": (scale * taste).astype("float32")})


def speech(steps: int = 24, bands: int = 8, letters: int = 6) -> dict[str, Arrays]:
    """Spectrograms in which each letter sounds for four steps, and their letters, padded with 0."""
    rng = np.random.default_rng(8)
    label = np.zeros((COUNT, steps // 4), "int32")
    sound = rng.normal(0, 0.2, (COUNT, steps, bands))
    for row, count in enumerate(rng.integers(2, steps // 4 - 1, COUNT)):
        label[row, :count] = rng.integers(1, letters + 1, count)
        for place in range(count):
            sound[row, 4 * place : 4 * place + 3, label[row, place]] += 1
    return by_split({"sound": sound.astype("float32"), "label": label})


def photos(classes: int = 4, size: int = 16) -> dict[str, Arrays]:
    """The images in three channels, as floats from 0 to 255, which models rescale themselves."""
    splits = images(classes, size, channels=3)
    for arrays in splits.values():
        arrays["image"] = np.clip(127 * (arrays["image"] + 0.5), 0, 255).round().astype("float32")
    return splits


def load(call: str) -> dict[str, Arrays]:
    """The arrays of a call of one of these functions."""
    splits: dict[str, Arrays] = eval(call)
    return splits
