"""Comparison of an export with its run: the same examples through both.

Shapes: N examples.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner.arrays import of as array_functions
from runner.data.base import Array
from runner.errors import EngineError, describe
from runner.host.outputs import quiet_native_log
from runner.task.base import named_outputs
from runner.train.export.signature import NAME, Served
from runner.train.export.write import KERAS_FILE

# Of the largest value of an answer. The run and its export sum in another order in float32, whose rounding is 6e-8 per
# operation; a wrong weight or a wrong input changes the answers by far more.
TOLERANCE = 1e-5

# Examples that the export predicts at once, unless the model mixes them.
BATCH = 500

Answers = Mapping[str, Array]
Predict = Callable[[Answers], Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """The difference between an export's answer and the run's.

    Attributes:
      exact: whether the answer has integers, which must be equal.
      largest: largest absolute difference of a float; of integers, the number of examples that differ.
      scale: largest absolute value of the run's answer.
    """

    exact: bool
    largest: float
    scale: float

    @property
    def equal(self) -> bool:
        """Whether floats agree to 1e-5 of the largest, as float32 rounds them, and integers exactly."""
        if self.exact:
            return self.largest == 0
        # NaN compares false.
        return self.largest <= TOLERANCE * self.scale

    def __str__(self) -> str:
        if self.exact:
            return f"{self.largest:,.0f} examples differ"
        return f"largest difference {self.largest:.1e}, largest value {self.scale:.3g}"


def compare(run: Answers, export: Answers) -> dict[str, Difference]:
    """Compares answers by name, each (N, ...); raises EngineError if the export has others, or other shapes."""
    run_shapes = {name: answer.shape for name, answer in run.items()}
    export_shapes = {name: answer.shape for name, answer in export.items()}
    if export_shapes != run_shapes:
        raise EngineError(f"the export answers {_listed(export_shapes)}, but the run answers {_listed(run_shapes)}")
    return {name: _difference(answer, export[name]) for name, answer in run.items()}


def compare_calls(run: Answers, export: Answers, again: Answers) -> dict[str, Difference]:
    """Returns `compare`, or nothing if the export draws random numbers, so that its answers must only be finite.

    `again` are the export's answers to the first examples in another call.
    """
    differences = compare(run, export)
    first = {name: export[name][: len(answer)] for name, answer in again.items()}
    is_random = not all(difference.equal for difference in compare(first, again).values())
    if is_random and all(np.isfinite(answer).all() for answer in export.values()):
        return {}
    return differences


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _difference(run: Array, export: Array) -> Difference:
    scale = float(np.abs(run).max(initial=0))
    if np.issubdtype(run.dtype, np.integer):
        differing = (run != export).reshape(len(run), -1).any(axis=1)
        return Difference(True, float(differing.sum()), scale)
    return Difference(False, float(np.abs(run - export).max(initial=0)), scale)


def check(
    saved_model: Path | None,
    keras: Any,
    served: Served,
    arrays: Answers,
    run: Array | Answers,
    log: Path,
    batch: int = BATCH,
) -> dict[str, dict[str, Difference]]:
    """Compares an export's answers, loaded again, with the run's.

    Args:
      saved_model: folder of its SavedModel; None: it has none.
      keras: the model of its Keras file; None: it has none.
      arrays: (N, ...) by name, its inputs.
      run: outputs (N, ...) of the run; by name if the model has several.
      batch: examples that are predicted at once.

    Returns:
      `SavedModel` and `model.keras`, as far as they were written -> answer -> difference; nothing for a random model.
    """
    served_arrays = {name: arrays[name].astype(spec.dtype) for name, spec in served.inputs.items()}
    expected = served.answers(run)
    compared: dict[str, dict[str, Difference]] = {}
    try:
        with quiet_native_log(log):
            if saved_model is not None:
                answers, again = _twice(_saved_model(saved_model), served_arrays, batch)
                compared["SavedModel"] = compare_calls(expected, answers, again)
            if keras is not None:
                inputs = served.model_inputs(array_functions(np), served_arrays)
                if not isinstance(inputs, Mapping):
                    inputs = {"": inputs}
                # The file has the model's outputs and not the task's answers: by name if the run has several.
                both: list[dict[str, Array]] = []
                for outputs in _twice(_keras_model(keras), inputs, batch):
                    if isinstance(run, Mapping):
                        both.append(served.answers(outputs))
                    else:
                        both.append(served.answers(next(iter(outputs.values()))))
                compared[KERAS_FILE] = compare_calls(expected, *both)
    except EngineError:
        raise
    except Exception as error:
        # Keras and TensorFlow share no class of errors.
        raise EngineError(f"the export can't be loaded again: {describe(error)}; see {log}") from error
    return compared


def _twice(predict: Predict, arrays: Answers, batch: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns a model's outputs (N, ...) by name, and those of the first batch in another call."""
    parts: dict[str, list[Array]] = {}
    for start in (*range(0, len(next(iter(arrays.values()))), batch), 0):
        outputs = predict({name: array[start : start + batch] for name, array in arrays.items()})
        for name, output in outputs.items():
            parts.setdefault(name, []).append(np.asarray(output))
    whole: dict[str, Array] = {}
    again: dict[str, Array] = {}
    for name, rows in parts.items():
        again[name] = rows.pop()
        whole[name] = np.concatenate(rows)
    return whole, again


def _saved_model(path: Path) -> Predict:
    tf = importlib.import_module("tensorflow")
    loaded = tf.saved_model.load(str(path))

    def predict(arrays: Answers) -> Mapping[str, Any]:
        # By way of the loaded model, which its signature does not keep alive.
        outputs: Mapping[str, Any] = loaded.signatures[NAME](**{n: tf.constant(array) for n, array in arrays.items()})
        return outputs

    return predict


def _keras_model(model: Any) -> Predict:
    def predict(arrays: Answers) -> Mapping[str, Any]:
        inputs: Answers | Array = arrays
        if len(arrays) == 1:
            (inputs,) = arrays.values()
        outputs = model(inputs, training=False)
        return {name: np.asarray(output, np.float32) for name, output in named_outputs(outputs).items()}

    return predict
