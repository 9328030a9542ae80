"""Built-in augmentation steps and their options. Imports no NumPy, so that config errors are reported early."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import ClassVar

from runner.config.fields import checked, choice, integer, number, valid_if

_SIDES = ("height", "width")
_RANGE = ("smallest", "largest")
_ASCENDING = valid_if(lambda limits: list(limits) == sorted(limits), "must be [smallest, largest], in this order")


@dataclass(frozen=True)
class StepOptions:
    """Base of the options of a step.

    Attributes:
      name: of the step in `dataset.augment`.
      sets_size: whether the step returns images of one size, whatever their size before.
    """

    name: ClassVar[str] = ""
    sets_size: ClassVar[bool] = False


@dataclass(frozen=True)
class Resize(StepOptions):
    """Resizes the whole image, also in evaluations.

    Attributes:
      size: [height, width].
    """

    name: ClassVar[str] = "resize"
    sets_size: ClassVar[bool] = True
    size: list[int] = checked(MISSING, entry_names=_SIDES, at_least=1, example=[224, 224])


@dataclass(frozen=True)
class CenterCrop(StepOptions):
    """Crops the center, also in evaluations.

    Attributes:
      size: [height, width].
    """

    name: ClassVar[str] = "center_crop"
    size: list[int] = checked(MISSING, entry_names=_SIDES, at_least=1, example=[224, 224])


@dataclass(frozen=True)
class RandomCrop(StepOptions):
    """Crops a random window of the image, padded with zeros; evaluations crop the center.

    Attributes:
      size: [height, width]; null: the size of the image.
      padding: pixels of padding on each side.
    """

    name: ClassVar[str] = "random_crop"
    size: list[int] | None = checked(None, entry_names=_SIDES, at_least=1, example=[224, 224])
    padding: int = integer(0, at_least=0)


@dataclass(frozen=True)
class RandomResizedCrop(StepOptions):
    """Crops a window of random position, area and aspect ratio, and resizes it.

    See section 6 of Szegedy et al., arXiv:1409.4842. Evaluations resize the largest centered window of the target's
    aspect ratio, scaled by `center`.

    Attributes:
      size: [height, width].
      scale: [smallest, largest] area of the window as a fraction of the image.
      ratio: [smallest, largest] aspect ratio of the window, width over height.
      center: fraction of the height and the width that evaluations use.
    """

    name: ClassVar[str] = "random_resized_crop"
    sets_size: ClassVar[bool] = True
    size: list[int] = checked(MISSING, entry_names=_SIDES, at_least=1, example=[224, 224])
    # The paper's ranges.
    scale: tuple[float, float] = checked(
        (0.08, 1.0), entry_names=_RANGE, above=0.0, at_most=1.0, whole=_ASCENDING, example=[0.08, 1.0]
    )
    ratio: tuple[float, float] = checked(
        (3 / 4, 4 / 3), entry_names=_RANGE, above=0.0, whole=_ASCENDING, example=[0.75, 1.33]
    )
    # The usual 224 of 256 pixels.
    center: float = number(0.875, above=0.0, at_most=1.0)


@dataclass(frozen=True)
class Flip(StepOptions):
    """Flips the image.

    Attributes:
      direction: `horizontal` (left to right), `vertical` or `both`, each drawn independently.
      probability: of each direction.
    """

    name: ClassVar[str] = "flip"
    direction: str = choice("horizontal", "horizontal", "vertical", "both")
    probability: float = number(0.5, above=0.0, at_most=1.0)


@dataclass(frozen=True)
class Color(StepOptions):
    """Jitters brightness, contrast, saturation and hue, in this order.

    Images are uint8, with one or three channels.

    Attributes:
      brightness: factor from 1 - brightness to 1 + brightness, not below 0.
      contrast: factor from 1 - contrast to 1 + contrast, around the mean gray of the image.
      saturation: factor from 1 - saturation to 1 + saturation, around the gray of each pixel.
      hue: largest shift of the hue, as a fraction of the color circle.
    """

    name: ClassVar[str] = "color"
    brightness: float = number(0.0, at_least=0.0, example=0.1)
    contrast: float = number(0.0, at_least=0.0, example=0.1)
    saturation: float = number(0.0, at_least=0.0, example=0.1)
    # Half of the color circle to either side is all of it.
    hue: float = number(0.0, at_least=0.0, at_most=0.5, example=0.1)


# Name of a step in `dataset.augment` -> its options.
STEPS: dict[str, type[StepOptions]] = {
    kind.name: kind for kind in (Resize, CenterCrop, RandomCrop, RandomResizedCrop, Flip, Color)
}
