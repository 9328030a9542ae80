"""Image-classification datasets: fetched, prepared by TFDS and decoded once, then read as plain arrays.

Importing this package imports no TensorFlow. TFDS works in a child process, because TensorFlow must not be
initialised here before the mesh is set up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.config.errors import ConfigError, DataError
from runner.config.schema import DatasetConfig
from runner.data.splits import Slice, parse_split

if TYPE_CHECKING:
    from runner.data.arrays import Dataset, Split

__all__ = ["Dataset", "Split", "load"]


def __getattr__(name: str) -> Any:
    """Imports what needs NumPy when it is asked for: a refusal of a config does not."""
    if name in ("Dataset", "Split"):
        from runner.data import arrays

        return getattr(arrays, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(config: DatasetConfig) -> Dataset:
    """Loads a dataset, fetching and decoding it first where that was not done yet.

    Args:
      config: the dataset's config.

    Returns:
      The dataset, its images uint8 as TFDS stores them.

    Raises:
      ConfigError: a key's value does not work with this dataset.
      DataError: the data is not there and can't be fetched, or is broken. The message is one line.

    Example:
      >>> digits = load(DatasetConfig(name="digits"))
      >>> digits.train.images.shape
      (1437, 8, 8, 1)
    """
    from runner.data import cache

    train, evaluate = _terms("train", config.train), _terms("eval", config.eval)
    if config.name == "digits":
        return _digits(config, train, evaluate)
    wanted, root = cache.request(config), cache.data_dir(config)
    found = cache.find(root, wanted)
    if found is None:
        from runner.data.child import decode

        decode(root, wanted, download=config.download, mirror=config.mirror)
        found = cache.find(root, wanted)
    if found is None:
        raise DataError(f"dataset.name={config.name} was decoded and yet is not in {cache.decoded_dir(root)}")
    return cache.read(*found, train, evaluate)


def _terms(key: str, text: str) -> tuple[Slice, ...]:
    try:
        return parse_split(text)
    except ValueError as error:
        raise ConfigError(f"dataset.{key}={text} is refused: {error}") from error


def _digits(config: DatasetConfig, train: tuple[Slice, ...], evaluate: tuple[Slice, ...]) -> Dataset:
    from runner.data.digits import load_digits

    return load_digits(train, evaluate, config.image_size)
