"""The built-in steps of augmentation and what each takes. Imports no NumPy: a refusal comes before anything heavy."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import ClassVar


@dataclass(frozen=True)
class StepOptions:
    """What every step's options have in common.

    Attributes:
      name: by which `dataset.augment` names the step.
      sizes: it gives images of one size, whatever size they come in.
    """

    name: ClassVar[str] = ""
    sizes: ClassVar[bool] = False


@dataclass(frozen=True)
class Resize(StepOptions):
    """Resizes the whole image; in evaluations too.

    Attributes:
      size: [height, width].
    """

    name: ClassVar[str] = "resize"
    sizes: ClassVar[bool] = True
    size: list[int]


@dataclass(frozen=True)
class CenterCrop(StepOptions):
    """Takes the middle; in evaluations too.

    Attributes:
      size: [height, width].
    """

    name: ClassVar[str] = "center_crop"
    size: list[int]


@dataclass(frozen=True)
class RandomCrop(StepOptions):
    """Takes a window anywhere in the image with a border of zeros around it; evaluations take the middle.

    Attributes:
      size: [height, width]; null: the image's own.
      padding: pixels of border on each side.
    """

    name: ClassVar[str] = "random_crop"
    size: list[int] | None = None
    padding: int = 0


@dataclass(frozen=True)
class RandomResizedCrop(StepOptions):
    """Resizes a window of any place, area and shape (Szegedy et al. 2014, arXiv:1409.4842, section 6).

    Evaluations resize the largest window of the size's own shape in the middle, times `center`.

    Attributes:
      size: [height, width].
      scale: [least, largest] share of the image's area, each above 0 and at most 1.
      ratio: [least, largest] width of the window over its height.
      center: share of the height and the width that evaluations take.
    """

    name: ClassVar[str] = "random_resized_crop"
    sizes: ClassVar[bool] = True
    size: list[int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    center: float = 0.875


@dataclass(frozen=True)
class Flip(StepOptions):
    """Mirrors.

    Attributes:
      direction: `horizontal` (left is right), `vertical` or `both`, each by a chance of its own.
      probability: of each.
    """

    name: ClassVar[str] = "flip"
    direction: str = "horizontal"
    probability: float = 0.5


@dataclass(frozen=True)
class Rotate(StepOptions):
    """Turns around the middle, bilinear; corners that come from outside are zero.

    Attributes:
      degrees: at most that much to either side.
    """

    name: ClassVar[str] = "rotate"
    degrees: float = 15.0


@dataclass(frozen=True)
class Color(StepOptions):
    """Changes brightness, contrast, saturation and hue, in this order; of uint8 images of one or three channels.

    Attributes:
      brightness: factor between 1 - brightness and 1 + brightness, not below 0.
      contrast: likewise, around the image's mean gray.
      saturation: likewise, around each pixel's gray.
      hue: turns the color circle by at most this share of it, up to 0.5.
    """

    name: ClassVar[str] = "color"
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0


@dataclass(frozen=True)
class Mixup(StepOptions):
    """Mixes two examples and what they are labeled (Zhang et al. 2017, arXiv:1710.09412).

    Labels that count categories become vectors of probabilities, in evaluations too.

    Attributes:
      alpha: the share is drawn from Beta(alpha, alpha).
      probability: that an example is mixed.
    """

    name: ClassVar[str] = "mixup"
    alpha: float = 0.2
    probability: float = 1.0


@dataclass(frozen=True)
class Cutmix(StepOptions):
    """Pastes a window of another example, and mixes labels by area (Yun et al. 2019, arXiv:1905.04899).

    Attributes:
      alpha: the share is drawn from Beta(alpha, alpha).
      probability: that an example is mixed.
    """

    name: ClassVar[str] = "cutmix"
    alpha: float = 1.0
    probability: float = 1.0


STEPS: dict[str, type[StepOptions]] = {
    kind.name: kind for kind in (Resize, CenterCrop, RandomCrop, RandomResizedCrop, Flip, Rotate, Color, Mixup, Cutmix)
}
ON = "on"  # option of a step of a user's own: `train` (default) or `all` splits


def required(kind: type[StepOptions]) -> list[str]:
    """Returns the names of the options that a step can't do without."""
    return [spec.name for spec in fields(kind) if spec.default is MISSING and spec.default_factory is MISSING]
