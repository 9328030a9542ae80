"""Preparation of a dataset: layers that are fitted on the train split, once, and recorded with the run.

A run records the fitted layers in its checkpoints and in `preparation.json`, which an export has too. Resume,
evaluations and exports apply them as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner.config.schema_data import DatasetConfig, PrepareConfig
from runner.config.schema_prepare import INT, Hashing, LayerOptions, TextVectorization
from runner.data import checks_prepare, layers
from runner.data.base import (
    Array,
    ArraySource,
    ArraySpec,
    Dataset,
    DataSource,
    Encoding,
    ExampleSource,
    FullDataset,
    Rows,
)
from runner.data.checks_prepare import KEY
from runner.data.encode import infer_spec
from runner.data.layers import Strings, Values
from runner.errors import did_you_mean, invalid

# File of a run's fitted layers, in its folder, its artifacts and its exports.
PREPARATION = "preparation.json"

# Examples per read while a source without arrays is read for a layer.
_BLOCK = 4096


@dataclass(frozen=True)
class FittedLayer:
    """A layer and what it learned from the train split.

    Attributes:
      layer: name of the class, such as `TextVectorization`.
      column: the array that it replaces.
      options: arguments of the class.
      state: what it learned; see `runner.data.layers`.
    """

    layer: str
    column: str
    options: Mapping[str, Any]
    state: Mapping[str, Any]

    def typed(self) -> LayerOptions:
        """Returns the options as the layer's dataclass."""
        return checks_prepare.options(PrepareConfig(self.layer, [self.column], dict(self.options)))

    def apply(self, values: Values) -> Array:
        """Returns the prepared values; see `runner.data.layers.transform`."""
        return layers.transform(self.typed(), self.state, values, f"{self.layer} of {self.column}")


def read(path: Path | str) -> list[FittedLayer]:
    """Reads the fitted layers of a run or an export.

    Args:
      path: of a `preparation.json`.
    """
    content = json.loads(Path(path).read_text("utf-8"))
    return from_json(content["layers"])


def to_text(encoding: Encoding) -> str:
    """Returns the content of `preparation.json`."""
    return json.dumps({"layers": list(encoding.prepared)}, ensure_ascii=False, indent=1) + "\n"


def from_json(content: Sequence[Mapping[str, Any]]) -> list[FittedLayer]:
    """Returns the layers of `Encoding.prepared`."""
    return [FittedLayer(**entry) for entry in content]


def apply(fitted: Sequence[FittedLayer], arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Returns arrays as the run's model takes them.

    Args:
      fitted: from `read`.
      arrays: raw values (N, ...) by name; strings for the layers that read them.

    Example:
      >>> fitted = [FittedLayer("CategoryEncoding", "size", {"num_tokens": 3}, {})]
      >>> apply(fitted, {"size": [2]})["size"].tolist()
      [[0.0, 0.0, 1.0]]
    """
    prepared = {name: np.asarray(values) for name, values in arrays.items()}
    for layer in fitted:
        if layer.column not in prepared:
            continue
        array = prepared[layer.column]
        values: Values = array
        options = layer.typed()
        if not options.reads_numbers or (options.reads_strings and array.dtype.kind in "USO"):
            distinct, codes = np.unique(array.astype(np.str_), return_inverse=True)
            values = Strings(distinct.tolist(), codes)
        prepared[layer.column] = layer.apply(values)
    return prepared


def prepared(
    full: FullDataset, config: DatasetConfig, encoding: Encoding | None, select: Callable[[FullDataset], Dataset]
) -> FullDataset:
    """Returns a dataset with the layers of `dataset.prepare` applied.

    Args:
      full: from its source.
      config: names the layers.
      encoding: of the recorded run, whose fitted layers are applied; None: they are fitted on the train split.
      select: returns the examples that the config selects.

    Raises:
      ConfigError: a layer does not fit its array, or the recorded run had other layers.
      DataError: the values can't be used.
    """
    recorded: list[FittedLayer] | None = None
    if encoding is not None:
        recorded = from_json(encoding.prepared)
        _check_recorded(config, recorded)
    fitted: list[FittedLayer] = []
    for index, layer in enumerate(config.prepare):
        options = checks_prepare.options(layer)
        for column in layer.columns:
            spec = _checked_spec(full, f"{KEY}[{index}]", layer.layer, column, options)
            if recorded is not None:
                this = recorded[len(fitted)]
            else:
                state = layers.fit(options, _column(select(full).train, column, options))
                this = FittedLayer(layer.layer, column, asdict(options), state)
            full = _replaced(full, spec, this)
            fitted.append(this)
    as_plain = tuple(asdict(layer) for layer in fitted)
    return replace(full, encoding=replace(full.encoding, prepared=as_plain))


def _check_recorded(config: DatasetConfig, recorded: Sequence[FittedLayer]) -> None:
    """Checks that the recorded run had the same layers."""
    expected = []
    for layer in config.prepare:
        options = asdict(checks_prepare.options(layer))
        expected += [(layer.layer, column, options) for column in layer.columns]
    actual = [(layer.layer, layer.column, dict(layer.options)) for layer in recorded]
    if actual != expected:
        names = ", ".join(f"{layer} of {column}" for layer, column, _ in actual)
        raise invalid(
            KEY,
            [layer.layer for layer in config.prepare],
            problem=f"must be the recorded run's, whose model needs its layers and options ({names or 'none'})",
            fix=f"remove {KEY} from the command line, or train a new run",
        )


def _checked_spec(full: FullDataset, key: str, layer: str, column: str, options: LayerOptions) -> ArraySpec:
    """Returns the spec of the array that a layer replaces."""
    specs = next(iter(full.splits.values())).specs
    if column not in specs:
        raise invalid(
            f"{key}.columns",
            column,
            problem=f"unknown array (the arrays: {', '.join(specs)})",
            fix=did_you_mean(column, specs, "name one of them"),
        )
    spec = specs[column]
    has_strings = bool(spec.names) and not spec.shape
    if not options.reads_numbers and not has_strings:
        problem = f"reads strings, but {column} has numbers"
        raise invalid(f"{key}.layer", layer, problem=problem, fix="use IntegerLookup, Normalization or Discretization")
    if not options.reads_strings and has_strings:
        problem = f"reads numbers, but {column} has strings"
        raise invalid(f"{key}.layer", layer, problem=problem, fix="use StringLookup or TextVectorization")
    mask = options.mask_value if isinstance(options, Hashing) else None
    if mask is not None and isinstance(mask, str) != has_strings:
        problem = f"must be of the kind of {column}, which has {'strings' if has_strings else 'numbers'}"
        raise invalid(f"{key}.mask_value", mask, problem=problem, fix="set another mask_value, or remove it")
    takes_integers = layer in ("IntegerLookup", "CategoryEncoding")
    if takes_integers and spec.dtype != "int32":
        problem = f"reads integers, but {column} is {spec.dtype}"
        raise invalid(f"{key}.layer", layer, problem=problem, fix="use Discretization or Normalization")
    if len(spec.shape) > 1 and layer != "Normalization":
        problem = f"takes a number or a vector per example, but {column} has the shape {list(spec.shape)}"
        raise invalid(f"{key}.layer", layer, problem=problem, fix="prepare it in the dataset's code")
    return spec


def _column(source: DataSource, name: str, options: LayerOptions) -> Values:
    """Returns an array of the train split, (N, ...)."""
    if isinstance(source, ArraySource):
        array = source.arrays[name]
    else:
        blocks = []
        for start in range(0, source.size, _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, source.size))
            blocks.append(source.read(rows)[name])
        array = np.concatenate(blocks)
    return _with_strings(source.specs[name], array, options)


def _with_strings(spec: ArraySpec, array: Array, options: LayerOptions) -> Values:
    """Returns an array as a layer takes it: as strings, if it has their numbers and the layer reads strings."""
    if options.reads_strings and spec.names:
        return Strings(spec.names, array)
    return array


def _replaced(full: FullDataset, spec: ArraySpec, layer: FittedLayer) -> FullDataset:
    """Returns a dataset with one array replaced in every split."""
    splits: dict[str, DataSource] = {}
    for split, source in full.splits.items():
        if isinstance(source, ArraySource):
            array = layer.apply(_with_strings(spec, source.arrays[layer.column], layer.typed()))
            array.flags.writeable = False
            specs = dict(source.specs) | {layer.column: _spec(array, layer)}
            splits[split] = ArraySource(dict(source.arrays) | {layer.column: array}, specs)
        else:
            assert isinstance(source, ExampleSource), "a source without arrays makes one example at a time"
            # The first example shows the shape and the dtype of all.
            example = source.example(0)[layer.column][None]
            specs = dict(source.specs) | {layer.column: _spec(layer.apply(example), layer)}
            splits[split] = Prepared(source, specs, layer, source.holds_gil)
    return replace(full, splits=splits)


def _spec(array: Array, layer: FittedLayer) -> ArraySpec:
    spec = infer_spec(array)
    options = layer.typed()
    if isinstance(options, TextVectorization) and options.output_mode == INT:
        return replace(spec, dims=("sequence",))
    return spec


@dataclass(frozen=True, eq=False)
class Prepared:
    """A source that prepares an array of each example as it is made."""

    inner: ExampleSource
    specs: Mapping[str, ArraySpec]
    layer: FittedLayer
    holds_gil: bool

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.inner.size

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of one example."""
        example = self.inner.example(row, epoch)
        column = self.layer.column
        return {**example, column: self.layer.apply(np.asarray(example[column])[None])[0]}

    def example_name(self, row: int) -> str:
        """Returns the example's name for messages."""
        return self.inner.example_name(row)

    def read(self, rows: Rows) -> dict[str, Array]:
        """Returns the arrays of some examples."""
        arrays = self.inner.read(rows)
        column = self.layer.column
        return {**arrays, column: self.layer.apply(arrays[column])}
