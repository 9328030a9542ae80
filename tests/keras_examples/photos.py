"""Made photographs, of the scale that models rescale themselves."""

import numpy as np

from tests.keras_examples import data
from tests.keras_examples.spec import Arrays


def photos(classes: int = 4, size: int = 16) -> dict[str, Arrays]:
    """The images of `data` in three channels, as floats from 0 to 255."""
    splits = data.images(classes, size, channels=3)
    for arrays in splits.values():
        arrays["image"] = np.clip(127 * (arrays["image"] + 0.5), 0, 255).round().astype("float32")
    return splits
