"""Encoded images of a dataset: their common size and channels, by the config or the first image."""

from __future__ import annotations

from dataclasses import dataclass

from runner.config.schema_data import DatasetConfig
from runner.data import images
from runner.data.augment import sizing
from runner.data.base import IMAGE_DIMS, Array, ArraySpec
from runner.errors import DataError


@dataclass(frozen=True, eq=False)
class ImageDecoder:
    """Decodes and resizes images to `size`; a ValueError says why it can't.

    Unless the config has the size, every image must have it already. Unless it has the channels or the first image has
    colors, every image must be gray.
    """

    size: tuple[int, int]
    channels: int
    is_resized: bool
    has_colors: bool

    @property
    def spec(self) -> ArraySpec:
        """Spec of the array of images."""
        return ArraySpec((*self.size, self.channels), "uint8", IMAGE_DIMS)

    def original(self, data: bytes) -> Array:
        """Returns an image in its own size."""
        if not self.has_colors and not images.read_header(data).gray:
            raise ValueError("it has colors, but the first image is gray; set dataset.channels=3")
        return images.decode(data, self.channels)

    def resized(self, data: bytes) -> Array:
        """Returns an image in the size of the dataset."""
        pixels = self.original(data)
        if not self.is_resized and pixels.shape[:2] != self.size:
            height, width = self.size
            raise ValueError(
                f"its size is {pixels.shape[0]}x{pixels.shape[1]}, but {height}x{width} in the first image; set "
                f"dataset.image_size=[{height},{width}]"
            )
        return images.resize(pixels, self.size)


def decoder_of(config: DatasetConfig, first: bytes, where: str) -> ImageDecoder:
    """Returns the decoder of a dataset, whose first image decides what the config leaves open."""
    try:
        header = images.read_header(first)
    except ValueError as error:
        raise DataError(f"{where} is not a readable image ({error}); fix or remove it") from error
    size = config.image_size or sizing(config)
    height, width = size or (header.height, header.width)
    has_colors = config.channels is not None or not header.gray
    channels = config.channels or 3
    if not has_colors:
        channels = 1
    return ImageDecoder((height, width), channels, size is not None, has_colors)
