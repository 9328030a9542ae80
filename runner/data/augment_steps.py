# ruff: noqa: D102 - a step overrides what Step documents
"""The built-in steps of augmentation, an example at a time: what each draws, and what evaluations do in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from runner.config import schema_augment as schema
from runner.data import images
from runner.data.base import Array, ArraySpec
from runner.errors import invalid

Arrays = dict[str, Array]
Specs = Mapping[str, ArraySpec]
Partner = Callable[[int], Arrays]  # row -> that example as it comes to this step
Options = TypeVar("Options", bound=schema.StepOptions, covariant=True)

_ATTEMPTS = 10  # windows that a random resized crop tries to fit, as in the paper's reference code
_ONE = 1 << 16  # shares of a mix count in 65,536ths: whole numbers give the same bits everywhere


@dataclass(frozen=True)
class Step(Generic[Options]):
    """One step. It changes no array that it is given.

    Attributes:
      options: from the config.
      key: of the step, for messages.
      specs: of the arrays that come to it.
      size: number of the split's examples.
    """

    options: Options
    key: str
    specs: Specs
    size: int

    def check(self) -> None:
        """Checks that it can work on these arrays.

        Raises:
          ConfigError: it can't.
        """
        self._need(bool(self._images), "arrays with the dims height and width, and the dataset has none")

    def _need(self, holds: bool, allowed: str) -> None:
        if not holds:
            named = self.options.name or "a step"
            raise invalid(f"{self.key}.name", named, problem=f"it takes {allowed}", fix="leave the step out")

    @cached_property
    def _images(self) -> list[str]:
        return [name for name, spec in self.specs.items() if spec.is_image]

    def after(self) -> dict[str, ArraySpec]:
        """Returns the specs of what it gives."""
        return dict(self.specs)

    def keeps(self, name: str) -> bool:
        """Tells whether an array is behind it as before it, in every example."""
        return name not in self._images

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        """Returns an example changed by chance; whatever it draws comes from `rng`."""
        del rng, partner
        return self.evaluate(arrays)

    def evaluate(self, arrays: Arrays) -> Arrays:
        """Returns an example of the same specs, changed by nothing but its content."""
        return arrays

    def _on_images(self, arrays: Arrays, change: Callable[[Array], Array]) -> Arrays:
        return {name: change(array) if name in self._images else array for name, array in arrays.items()}

    def _sized(self, size: list[int]) -> dict[str, ArraySpec]:
        return {
            name: replace(spec, shape=(*size, spec.shape[2])) if spec.is_image else spec
            for name, spec in self.specs.items()
        }

    def _check_resizable(self) -> None:
        self._check_layout()
        kinds = {self.specs[name].dtype for name in self._images}
        self._need(kinds <= {"uint8", "float32"}, f"images of uint8 or float32, not of {', '.join(sorted(kinds))}")

    def _check_dims(self) -> None:
        Step.check(self)
        shapes = {self.specs[name].dims for name in self._images}
        self._need(shapes <= {("height", "width", "channel")}, "images of the dims height, width and channel")

    def _check_layout(self) -> None:
        self._check_dims()
        sizes = {self.specs[name].shape[:2] for name in self._images}
        self._need(len(sizes) == 1, "images of one size: their windows are drawn together")


class Resize(Step[schema.Resize]):
    """Resizes the whole image."""

    def check(self) -> None:
        self._check_resizable()

    def after(self) -> dict[str, ArraySpec]:
        return self._sized(self.options.size)

    def evaluate(self, arrays: Arrays) -> Arrays:
        height, width = self.options.size
        return self._on_images(arrays, lambda image: images.resize(image, (height, width)))


class CenterCrop(Step[schema.CenterCrop]):
    """Takes the middle."""

    def check(self) -> None:
        self._check_layout()

    def after(self) -> dict[str, ArraySpec]:
        return self._sized(self.options.size)

    def evaluate(self, arrays: Arrays) -> Arrays:
        height, width = self.options.size
        return self._on_images(arrays, lambda image: _middle(image, (height, width)))


class RandomCrop(Step[schema.RandomCrop]):
    """Takes a window anywhere."""

    def check(self) -> None:
        self._check_layout()
        (height, width), border = self.specs[self._images[0]].shape[:2], 2 * self.options.padding
        size = self._window()
        if size[0] > height + border or size[1] > width + border:
            raise invalid(
                f"{self.key}.size",
                list(size),
                problem=f"at most {[height + border, width + border]}, the image with its border",
                fix="make it smaller, or padding larger",
            )

    def _window(self) -> tuple[int, int]:
        height, width = self.options.size or self.specs[self._images[0]].shape[:2]
        return height, width

    def after(self) -> dict[str, ArraySpec]:
        return self._sized(list(self._window()))

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        del partner
        padding, (tall, wide) = self.options.padding, self._window()
        height, width = arrays[self._images[0]].shape[:2]
        top = int(rng.integers(height + 2 * padding - tall + 1)) - padding
        left = int(rng.integers(width + 2 * padding - wide + 1)) - padding
        return self._on_images(arrays, lambda image: images.crop(image, top, left, (tall, wide)))

    def evaluate(self, arrays: Arrays) -> Arrays:
        return self._on_images(arrays, lambda image: _middle(image, self._window()))


class RandomResizedCrop(Step[schema.RandomResizedCrop]):
    """Resizes a window of any place, area and shape."""

    def check(self) -> None:
        self._check_resizable()

    def after(self) -> dict[str, ArraySpec]:
        return self._sized(self.options.size)

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        del partner
        height, width = arrays[self._images[0]].shape[:2]
        box = self._window(height, width, rng)
        size = (self.options.size[0], self.options.size[1])
        return self._on_images(arrays, lambda image: images.resize(image, size, box))

    def _window(self, height: int, width: int, rng: np.random.Generator) -> images.Box:
        low, high = (math.log(bound) for bound in self.options.ratio)
        least, largest = self.options.scale
        for _ in range(_ATTEMPTS):
            area = height * width * (least + (largest - least) * rng.random())
            ratio = math.exp(low + (high - low) * rng.random())
            wide = round(math.sqrt(area * ratio))
            tall = round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < tall <= height:
                left = int(rng.random() * (width - wide + 1))
                top = int(rng.random() * (height - tall + 1))
                return left, top, left + wide, top + tall
        shape = min(max(width / height, self.options.ratio[0]), self.options.ratio[1])  # the largest that fits
        wide = max(1, min(width, round(height * shape)))
        tall = max(1, min(height, round(width / shape)))
        left = (width - wide) // 2
        top = (height - tall) // 2
        return left, top, left + wide, top + tall

    def evaluate(self, arrays: Arrays) -> Arrays:
        size = (self.options.size[0], self.options.size[1])

        def middle(image: Array) -> Array:
            height, width = image.shape[:2]
            return images.resize(image, size, images.center_box(height, width, size, self.options.center))

        return self._on_images(arrays, middle)


class Flip(Step[schema.Flip]):
    """Mirrors."""

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        del partner
        for vertical in (False, True):
            wanted = self.options.direction in ("both", "vertical" if vertical else "horizontal")
            if wanted and rng.random() < self.options.probability:
                arrays = self._on_images(arrays, lambda image, up=vertical: images.flip(image, vertical=up))  # type: ignore[misc]
        return arrays

    def check(self) -> None:
        self._check_dims()


class Rotate(Step[schema.Rotate]):
    """Turns around the middle."""

    def check(self) -> None:
        self._check_resizable()

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        del partner
        degrees = self.options.degrees * (2 * rng.random() - 1)
        return self._on_images(arrays, lambda image: images.rotate(image, degrees))


class Color(Step[schema.Color]):
    """Changes brightness, contrast, saturation and hue."""

    def check(self) -> None:
        self._check_layout()
        kinds = {(self.specs[name].dtype, self.specs[name].shape[2]) for name in self._images}
        self._need(kinds <= {("uint8", 1), ("uint8", 3)}, "images of uint8 with one or three channels")

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        del partner
        options = self.options
        brightness, contrast, saturation = (
            max(0.0, 1 + spread * (2 * rng.random() - 1))
            for spread in (options.brightness, options.contrast, options.saturation)
        )
        hue = options.hue * (2 * rng.random() - 1)
        return self._on_images(arrays, lambda image: images.color(image, brightness, contrast, saturation, hue))


class _Mix(Step[Options]):
    """Mixes an example with another one, which is as its own draws of the same epoch make it."""

    def check(self) -> None:
        super().check()
        for name, spec in self.specs.items():
            fits = spec.is_image or np.issubdtype(np.dtype(spec.dtype), np.floating) or (spec.names and not spec.shape)
            self._need(bool(fits), f"images, floats and labels that count categories, and {name} is {spec.dtype}")

    def _categories(self, name: str) -> int:
        spec = self.specs[name]
        counts = spec.names and not spec.shape and not np.issubdtype(np.dtype(spec.dtype), np.floating)
        return len(spec.names) if counts else 0

    def after(self) -> dict[str, ArraySpec]:
        return {
            name: ArraySpec((len(spec.names),), "float32", names=spec.names) if self._categories(name) else spec
            for name, spec in self.specs.items()
        }

    def keeps(self, name: str) -> bool:
        del name
        return False

    def evaluate(self, arrays: Arrays) -> Arrays:
        return {
            name: _one_hot(array, self._categories(name)) if self._categories(name) else array
            for name, array in arrays.items()
        }

    def _mixed(self, share: int, arrays: Arrays, other: Arrays, *, images_too: bool) -> Arrays:
        """Returns `share` / 65,536 of an example and the rest of another; images where asked for."""
        taken = {name: array for name, array in arrays.items() if images_too or name not in self._images}
        return arrays | {name: _blend(array, other[name], share) for name, array in taken.items()}


class Mixup(_Mix[schema.Mixup]):
    """Mixes two examples and what they are labeled."""

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        arrays = self.evaluate(arrays)
        if rng.random() >= self.options.probability:
            return arrays
        share = round(_ONE * rng.beta(self.options.alpha, self.options.alpha))
        other = self.evaluate(partner(int(rng.integers(self.size))))
        return self._mixed(share, arrays, other, images_too=True)


class Cutmix(_Mix[schema.Cutmix]):
    """Pastes a window of another example."""

    def check(self) -> None:
        super().check()
        self._check_layout()

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        arrays = self.evaluate(arrays)
        if rng.random() >= self.options.probability:
            return arrays
        height, width = arrays[self._images[0]].shape[:2]
        side = math.sqrt(1 - rng.beta(self.options.alpha, self.options.alpha))
        tall = round(height * side)
        wide = round(width * side)
        middle = int(rng.integers(height))
        across = int(rng.integers(width))
        top = max(0, middle - tall // 2)
        bottom = min(height, middle - tall // 2 + tall)
        left = max(0, across - wide // 2)
        right = min(width, across - wide // 2 + wide)
        other = self.evaluate(partner(int(rng.integers(self.size))))
        kept = height * width - max(0, bottom - top) * max(0, right - left)
        mixed = self._mixed(round(_ONE * kept / (height * width)), arrays, other, images_too=False)
        for name in self._images:
            pasted = mixed[name].copy()
            pasted[top:bottom, left:right] = other[name][top:bottom, left:right]
            mixed[name] = pasted
        return mixed


def _one_hot(label: Array, count: int) -> Array:
    vector = np.zeros(count, np.float32)
    vector[int(label)] = 1
    return vector


def _blend(one: Array, other: Array, share: int) -> Array:
    if np.issubdtype(one.dtype, np.integer):  # rounded to the nearest
        mixed = one.astype(np.int64) * share + other.astype(np.int64) * (_ONE - share) + _ONE // 2
        return (mixed >> 16).astype(one.dtype)
    part = share / _ONE
    return (one * part + other * (1 - part)).astype(one.dtype)


def _middle(image: Array, size: tuple[int, int]) -> Array:
    top = (image.shape[0] - size[0]) // 2
    left = (image.shape[1] - size[1]) // 2
    return images.crop(image, top, left, size)


STEPS: Mapping[str, Callable[..., Step[schema.StepOptions]]] = {
    schema.Resize.name: Resize,
    schema.CenterCrop.name: CenterCrop,
    schema.RandomCrop.name: RandomCrop,
    schema.RandomResizedCrop.name: RandomResizedCrop,
    schema.Flip.name: Flip,
    schema.Rotate.name: Rotate,
    schema.Color.name: Color,
    schema.Mixup.name: Mixup,
    schema.Cutmix.name: Cutmix,
}
