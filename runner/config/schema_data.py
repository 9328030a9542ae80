"""The part of the run config that says what to train on. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runner.config.fields import NOT_EMPTY, checked, choice, file_path, integer, number, text, valid_if

APART = "apart"
JOINED = "joined"
DOCUMENTS = (APART, JOINED)
# The tokenizer whose tokens are bytes.
BYTES = "bytes"
# Tokens of a row if the config says nothing.
LENGTH = 256

# Limits of a vocabulary and of a row, in tokens. Both are choices far above published models: a larger number is a
# typing mistake, which would fail late, out of memory.
MOST_TOKENS = 1 << 24
_LONGEST_SEQUENCE = 1 << 20


@dataclass(frozen=True)
class AugmentConfig:
    """One augmentation step.

    It is a function of the seed, the epoch and the index of the example.

    Attributes:
      name: a built-in step, such as `random_crop`; empty if `target` is set.
      target: `_target_` in YAML; import path of a callable `(arrays, rng, **options) -> arrays` of one training
        example, with the same shapes and dtypes.
      options: keyword arguments; in YAML they are written next to the name.
    """

    name: str = ""
    target: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def _is_standardize(value: object) -> bool:
    """Returns whether a value is a flag, or a list of names of arrays."""
    are_names = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
    return isinstance(value, bool) or are_names


def _are_parts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and "name" in part for part in value)


@dataclass(frozen=True)
class DatasetConfig:
    """A dataset and how its batches are made.

    Attributes:
      name: `arrays`, `parquet`, `huggingface`, `image_folder`, `text`, `custom`, `mixture`, `digits` (scikit-learn's),
        `pydoc`, or the name of a TFDS builder.
      path: arrays, parquet, huggingface, image_folder, text: file or folder, for arrays, parquet and text also a glob;
        relative to the current directory.
      target: custom: `_target_` in YAML; import path of a callable that returns the data.
      options: custom: its keyword arguments; in YAML they are written next to `_target_`.
      features: TFDS, arrays, parquet, huggingface: features or columns to use; null: the supervised ones, or all.
      batch_size: global batch size, over all devices.
      eval_batch_size: global batch size of evaluations, limited to the size of the split; null: the larger of
        `batch_size` and 1,000, rounded up to a multiple of the batch axis; `batch_size` if the loss compares the rows
        of a batch (`task.whole_batch=true`).
      train: split expression, such as `train`, `train[:5000]` or `train[10%:]+test`.
      validation: split expression for evaluations during training, which select the best checkpoint; null: the data's
        own split `validation` if it has one (with `holdout: null`, or as a file or folder), else see `holdout`.
      test: split expression for the final evaluation; null: the data's own split `test`, else a fixed fifth of train
        (for text the last tenth of the documents).
      holdout: fraction of train that is held out as validation split, chosen with the run's seed; 0: none, so
        evaluations are on test; null: 0.1 if there is no validation split, and 0 if a full batch would not be left
        or the dataset is a mixture.
      standardize: standardize numeric inputs with the mean and standard deviation of the train split: true (float
        arrays and integer columns, but no target), false, or the names of the arrays.
      shuffle: draw a new order each epoch, from the seed and the number of the epoch.
      remainder: what to do with the last partial training batch: `drop` or `pad` (with examples of weight 0).
      column: text: field of .jsonl files and column of .parquet and .arrow files with the text; null: `text`.
      tokenizer: text: `bytes`, or the path of a tokenizer.json; null: bytes.
      end_token: token appended after each document; null: none.
      sequence_length: text: tokens per example; null: 256.
      documents: sequence packing: `apart` (with document masking, by the arrays `segments` and `label_weight`) or
        `joined` (one running text).
      data_dir: folder of prepared data; null: for TFDS $TFDS_DATA_DIR, else ~/tensorflow_datasets; for text a folder
        in your cache directory.
      download: TFDS, mnist, fashion_mnist: download missing data (false: only prepared data is used).
      image_size: [height, width] to resize images to; null: unchanged.
      channels: image_folder, parquet, huggingface: 1 (gray), 3 (color) or 4 (with alpha); null: 1 if the first image
        is gray, else 3.
      augment: augmentation steps, in order.
      workers: threads that decode and augment; null: by the number of cores; 0: only the prefetching one.
      parts: mixture: its datasets, each with `name`, the keys of that dataset, and `weight` (default 1): its share of
        the training examples, relative to the other weights.
      prefetch: batches prefetched, in device calls.
    """

    # Every name of a TFDS builder is valid too, so this is not a list of choices.
    name: str = "mnist"
    path: str | None = file_path(None, example="my_data")
    target: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    features: list[str] | None = checked(None, whole=NOT_EMPTY, rule="", example=["image", "label"])
    batch_size: int = integer(128, at_least=1)
    eval_batch_size: int | None = integer(None, at_least=1, example=1000)
    train: str = "train"
    validation: str | None = None
    test: str | None = "test"
    # With 1 nothing would be left to train on.
    holdout: float | None = number(0.0, at_least=0.0, below=1.0, example=0.1)
    standardize: Any = checked(
        False,
        whole=valid_if(_is_standardize, "must be true, false or a list of array names"),
        rule="boolean, or list of names",
        example=True,
    )
    shuffle: bool = True
    remainder: str = choice("drop", "drop", "pad")
    column: str | None = None
    tokenizer: str | None = None
    end_token: str | None = text(None, example="END")
    sequence_length: int | None = integer(None, at_least=1, at_most=_LONGEST_SEQUENCE, unit="tokens", example=256)
    documents: str | None = choice(None, *DOCUMENTS)
    data_dir: str | None = file_path(None, example="prepared")
    download: bool = True
    image_size: list[int] | None = checked(None, entry_names=("height", "width"), at_least=1, example=[64, 64])
    channels: int | None = choice(None, 1, 3, 4)
    augment: list[AugmentConfig] = field(default_factory=list)
    workers: int | None = integer(None, at_least=0)
    parts: list[dict[str, Any]] = checked(
        [],
        whole=valid_if(_are_parts, "must be a list of mappings, each with a name and the keys of that dataset"),
        rule="each with `name` and the keys of that dataset",
        example=[{"name": "arrays", "path": "a.npz", "weight": 0.7}, {"name": "arrays", "path": "b.npz"}],
    )
    prefetch: int = integer(2, at_least=1)
