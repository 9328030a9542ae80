# ruff: noqa: D102 - a step overrides what Step documents
"""The built-in augmentation steps of one example, in training and evaluations.

The order in which a step draws from `rng` is part of its result: recorded runs resume with the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from runner.config import schema_augment as schema
from runner.data import images
from runner.data.base import IMAGE_DIMS, Array, ArraySpec
from runner.errors import invalid

Arrays = dict[str, Array]
Specs = Mapping[str, ArraySpec]
Options = TypeVar("Options", bound=schema.StepOptions, covariant=True)
# (pixels (H, W, C), number of a mask outside of it or None for an image) -> changed pixels
Change = Callable[[Array, int | None], Array]

# Attempts of a random resized crop to draw a window that fits, as in the reference code of its paper.
_ATTEMPTS = 10


@dataclass(frozen=True)
class Step(Generic[Options]):
    """One step. It never modifies the arrays it receives, whose specs are `specs`.

    `masks` are the arrays whose numbers must not be blended, such as class numbers of pixels, each with its number for
    pixels from outside of the image.
    """

    options: Options
    key: str
    specs: Specs
    masks: Mapping[str, int] = field(default_factory=dict)

    def check(self) -> None:
        """Checks that the step supports these arrays."""
        self._require(bool(self._images), "arrays with the dims height and width, and the dataset has none")

    def _require(self, is_met: bool, requirement: str) -> None:
        if not is_met:
            raise invalid(f"{self.key}.name", self.options.name, problem=f"needs {requirement}", fix="remove the step")

    @cached_property
    def _images(self) -> list[str]:
        return [name for name, spec in self.specs.items() if spec.is_image]

    @cached_property
    def _pixels(self) -> list[str]:
        """Names of the arrays with values per pixel: the images, and masks and maps of an image's height and width.

        A mask (H, W) of a file has no names of its dims, but is moved together with its image.
        """
        sizes = {self.specs[name].shape[:2] for name in self._images}
        names = []
        for name, spec in self.specs.items():
            is_map = not spec.dims and len(spec.shape) in (2, 3) and spec.shape[:2] in sizes
            if spec.is_image or is_map:
                names.append(name)
        return names

    def _outside(self, name: str) -> int | None:
        """Returns the number of a mask outside of its image; None for an image, whose pixels may be blended."""
        spec = self.specs[name]
        dtype = np.dtype(spec.dtype)
        # Integers that are not an image count something, even if no task says so.
        is_mask = name in self.masks or (not spec.is_image and dtype.kind in "biu")
        if not is_mask:
            return None
        outside = self.masks.get(name, 0)
        # A number that the dtype does not have, such as -1 of uint8, marks nothing in this mask.
        if dtype.kind == "b" or (dtype.kind in "iu" and not np.iinfo(dtype).min <= outside <= np.iinfo(dtype).max):
            return 0
        return outside

    def after(self) -> dict[str, ArraySpec]:
        """Returns the specs of the result."""
        return dict(self.specs)

    def keeps(self, name: str) -> bool:
        """Returns whether the step leaves an array unchanged in every example."""
        return name not in self._pixels

    def train(self, arrays: Arrays, rng: np.random.Generator) -> Arrays:
        """Returns a randomly changed example; every draw comes from `rng`."""
        del rng
        return self.evaluate(arrays)

    def evaluate(self, arrays: Arrays) -> Arrays:
        """Returns an example with the same specs as `train`, without randomness."""
        return arrays

    def _on_pixels(self, arrays: Arrays, change: Change) -> Arrays:
        changed = dict(arrays)
        for name in self._pixels:
            outside = self._outside(name)
            if arrays[name].ndim == 2:
                changed[name] = change(arrays[name][..., None], outside)[..., 0]
            else:
                changed[name] = change(arrays[name], outside)
        return changed

    def _with_image_size(self, size: list[int]) -> dict[str, ArraySpec]:
        specs = dict(self.specs)
        for name in self._pixels:
            spec = self.specs[name]
            specs[name] = replace(spec, shape=(*size, *spec.shape[2:]))
        return specs

    def _check_image_dims(self) -> None:
        Step.check(self)
        for name in self._images:
            self._require(self.specs[name].dims == IMAGE_DIMS, "images with the dims height, width and channel")

    def _check_common_size(self) -> None:
        self._check_image_dims()
        sizes = {self.specs[name].shape[:2] for name in self._images}
        self._require(len(sizes) == 1, "images of one size, because it draws one window for all of them")

    def _check_resizable(self) -> None:
        self._check_common_size()
        dtypes = set()
        for name in self._pixels:
            if self._outside(name) is None:
                dtypes.add(self.specs[name].dtype)
        requirement = f"images of uint8 or float32, not of {', '.join(sorted(dtypes))}"
        self._require(dtypes <= {"uint8", "float32"}, requirement)


class Resize(Step[schema.Resize]):
    """Resizes the image."""

    check = Step._check_resizable

    def after(self) -> dict[str, ArraySpec]:
        return self._with_image_size(self.options.size)

    def evaluate(self, arrays: Arrays) -> Arrays:
        height, width = self.options.size
        return self._on_pixels(arrays, lambda image, outside: _resized(image, (height, width), None, outside))


class CenterCrop(Step[schema.CenterCrop]):
    """Crops the center."""

    check = Step._check_common_size

    def after(self) -> dict[str, ArraySpec]:
        return self._with_image_size(self.options.size)

    def evaluate(self, arrays: Arrays) -> Arrays:
        height, width = self.options.size
        return self._on_pixels(arrays, lambda image, outside: _center(image, (height, width), outside))


class RandomCrop(Step[schema.RandomCrop]):
    """Crops a random window."""

    def check(self) -> None:
        self._check_common_size()
        height, width = self.specs[self._images[0]].shape[:2]
        largest = [height + 2 * self.options.padding, width + 2 * self.options.padding]
        size = list(self._crop_size())
        if size[0] > largest[0] or size[1] > largest[1]:
            problem = f"must be at most {largest} (the image with its padding)"
            raise invalid(f"{self.key}.size", size, problem=problem, fix="lower size, or increase padding")

    def _crop_size(self) -> tuple[int, int]:
        height, width = self.options.size or self.specs[self._images[0]].shape[:2]
        return height, width

    def after(self) -> dict[str, ArraySpec]:
        return self._with_image_size(list(self._crop_size()))

    def train(self, arrays: Arrays, rng: np.random.Generator) -> Arrays:
        padding = self.options.padding
        crop_height, crop_width = self._crop_size()
        height, width = arrays[self._images[0]].shape[:2]
        top = int(rng.integers(height + 2 * padding - crop_height + 1)) - padding
        left = int(rng.integers(width + 2 * padding - crop_width + 1)) - padding
        size = (crop_height, crop_width)
        return self._on_pixels(arrays, lambda image, outside: images.crop(image, top, left, size, outside or 0))

    def evaluate(self, arrays: Arrays) -> Arrays:
        return self._on_pixels(arrays, lambda image, outside: _center(image, self._crop_size(), outside))


class RandomResizedCrop(Step[schema.RandomResizedCrop]):
    """Crops a window of random position, area and aspect ratio, and resizes it."""

    check = Step._check_resizable

    def after(self) -> dict[str, ArraySpec]:
        return self._with_image_size(self.options.size)

    def train(self, arrays: Arrays, rng: np.random.Generator) -> Arrays:
        height, width = arrays[self._images[0]].shape[:2]
        box = self._random_box(height, width, rng)
        size = (self.options.size[0], self.options.size[1])
        return self._on_pixels(arrays, lambda image, outside: _resized(image, size, box, outside))

    def _random_box(self, height: int, width: int, rng: np.random.Generator) -> images.Box:
        smallest_ratio, largest_ratio = self.options.ratio
        low = math.log(smallest_ratio)
        high = math.log(largest_ratio)
        least, largest = self.options.scale
        for _ in range(_ATTEMPTS):
            area = height * width * (least + (largest - least) * rng.random())
            ratio = math.exp(low + (high - low) * rng.random())
            box_width = round(math.sqrt(area * ratio))
            box_height = round(math.sqrt(area / ratio))
            if 0 < box_width <= width and 0 < box_height <= height:
                left = int(rng.random() * (width - box_width + 1))
                top = int(rng.random() * (height - box_height + 1))
                return left, top, left + box_width, top + box_height
        # No window fits, as in a long and narrow image: the largest centered one with an allowed aspect ratio.
        ratio = min(max(width / height, smallest_ratio), largest_ratio)
        box_width = max(1, min(width, round(height * ratio)))
        box_height = max(1, min(height, round(width / ratio)))
        left = (width - box_width) // 2
        top = (height - box_height) // 2
        return left, top, left + box_width, top + box_height

    def evaluate(self, arrays: Arrays) -> Arrays:
        size = (self.options.size[0], self.options.size[1])

        def resize_center(image: Array, outside: int | None) -> Array:
            height, width = image.shape[:2]
            return _resized(image, size, images.center_box(height, width, size, self.options.center), outside)

        return self._on_pixels(arrays, resize_center)


class Flip(Step[schema.Flip]):
    """Flips horizontally, vertically, or each with its own draw."""

    check = Step._check_image_dims

    def train(self, arrays: Arrays, rng: np.random.Generator) -> Arrays:
        direction = self.options.direction
        if direction in ("horizontal", "both") and rng.random() < self.options.probability:
            arrays = self._on_pixels(arrays, lambda image, _: images.flip(image, vertical=False))
        if direction in ("vertical", "both") and rng.random() < self.options.probability:
            arrays = self._on_pixels(arrays, lambda image, _: images.flip(image, vertical=True))
        return arrays


class Color(Step[schema.Color]):
    """Changes brightness, contrast, saturation and hue."""

    @cached_property
    def _colored(self) -> list[str]:
        return [name for name in self._images if name not in self.masks]

    def keeps(self, name: str) -> bool:
        return name not in self._colored

    def check(self) -> None:
        self._check_common_size()
        self._require(bool(self._colored), "images, and the dataset has masks only")
        for name in self._colored:
            spec = self.specs[name]
            is_supported = spec.dtype == "uint8" and spec.shape[2] in (1, 3)
            self._require(is_supported, "images of uint8 with one or three channels")

    def train(self, arrays: Arrays, rng: np.random.Generator) -> Arrays:
        options = self.options
        brightness = max(0.0, 1 + options.brightness * _symmetric(rng))
        contrast = max(0.0, 1 + options.contrast * _symmetric(rng))
        saturation = max(0.0, 1 + options.saturation * _symmetric(rng))
        hue = options.hue * _symmetric(rng)
        changed = dict(arrays)
        for name in self._colored:
            changed[name] = images.color(arrays[name], brightness, contrast, saturation, hue)
        return changed


def _symmetric(rng: np.random.Generator) -> float:
    return 2 * rng.random() - 1


def _center(image: Array, size: tuple[int, int], outside: int | None) -> Array:
    top = (image.shape[0] - size[0]) // 2
    left = (image.shape[1] - size[1]) // 2
    return images.crop(image, top, left, size, outside or 0)


def _resized(image: Array, size: tuple[int, int], box: images.Box | None, outside: int | None) -> Array:
    """Returns an image, or a mask whose numbers are not blended, or a window of it, in another size."""
    if box is not None:
        left, top, right, bottom = box
        image = image[top:bottom, left:right]
    if outside is None:
        return images.resize(image, size)
    return images.resize_nearest(image, size)


STEPS: Mapping[str, Callable[..., Step[schema.StepOptions]]] = {
    schema.Resize.name: Resize,
    schema.CenterCrop.name: CenterCrop,
    schema.RandomCrop.name: RandomCrop,
    schema.RandomResizedCrop.name: RandomResizedCrop,
    schema.Flip.name: Flip,
    schema.Color.name: Color,
}
