"""Comparison of an export with its run: the same examples through both.

Shapes: N examples.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner.arrays import of as array_functions
from runner.data.base import Array
from runner.errors import EngineError, describe
from runner.export.signature import NAME, Served
from runner.export.write import KERAS_FILE, SAVED_MODEL, Written
from runner.host.logs import quiet_native_log
from runner.task.base import named_outputs

# Of the largest value of an answer. The run and its export sum in another order in float32, whose rounding is 6e-8 per
# operation; a wrong weight or a wrong input changes the answers by far more.
TOLERANCE = 1e-5

# Examples that the export predicts at once, unless the model mixes them.
BATCH = 500


@dataclass(frozen=True)
class Difference:
    """The difference between an export's answer and the run's.

    Attributes:
      exact: whether the answer has integers, which must be equal.
      differing: examples whose integers differ; 0 for floats.
      largest: largest absolute difference of a float; 0 for integers.
      scale: largest absolute value of the run's answer; for a random answer, of the export's.
      drawn: whether the answer depends on random numbers, which each call draws again, so that it must only be finite.
    """

    exact: bool
    differing: int
    largest: float
    scale: float
    drawn: bool = False

    @property
    def equal(self) -> bool:
        """Whether floats agree to 1e-5 of the largest, as float32 rounds them, and integers exactly."""
        if self.drawn:
            return bool(np.isfinite(self.scale))
        # NaN compares false.
        return self.differing == 0 and self.largest <= TOLERANCE * self.scale


@dataclass(frozen=True)
class Comparison:
    """The differences between an export's answers and the run's.

    Attributes:
      examples: how many were compared.
      answers: the task's name of an answer -> difference.
    """

    examples: int
    answers: Mapping[str, Difference]

    @property
    def equal(self) -> bool:
        """Whether all answers are equal."""
        return all(difference.equal for difference in self.answers.values())


def compare(run: Mapping[str, Array], export: Mapping[str, Array], drawn: Collection[str] = ()) -> Comparison:
    """Compares answers by name, each (N, ...).

    Args:
      run: answers of the run.
      export: answers of the export, loaded again.
      drawn: names of the answers that depend on random numbers.

    Raises:
      EngineError: the export has other answers, or other shapes.
    """
    run_shapes = _shapes(run)
    export_shapes = _shapes(export)
    if export_shapes != run_shapes:
        raise EngineError(f"the export answers {_listed(export_shapes)}, but the run answers {_listed(run_shapes)}")
    answers: dict[str, Difference] = {}
    for name, answer in run.items():
        if name in drawn:
            answers[name] = _drawn(export[name])
        else:
            answers[name] = _difference(answer, export[name])
    return Comparison(len(next(iter(run.values()))), answers)


def _shapes(answers: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: answer.shape for name, answer in answers.items()}


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _drawn(export: Array) -> Difference:
    exact = np.issubdtype(export.dtype, np.integer)
    return Difference(exact, 0, 0.0, float(np.abs(export).max(initial=0)), drawn=True)


def _difference(run: Array, export: Array) -> Difference:
    if np.issubdtype(run.dtype, np.integer):
        differing = (run != export).reshape(len(run), -1).any(axis=1)
        return Difference(True, int(differing.sum()), 0.0, float(np.abs(run).max(initial=0)))
    return Difference(False, 0, float(np.abs(run - export).max()), float(np.abs(run).max()))


def check(
    folder: Path,
    written: Written,
    library: str,
    served: Served,
    arrays: Mapping[str, Array],
    run: Array | Mapping[str, Array],
    log: Path,
    drawn: Collection[str] = (),
    batch: int = BATCH,
) -> dict[str, Comparison]:
    """Loads an export again, and compares its answers with the run's.

    Args:
      folder: the folder of the export.
      written: its content.
      library: `keras` or `tf_keras`, which reads its Keras file.
      served: its signature.
      arrays: (N, ...) by name, its inputs.
      run: outputs (N, ...) of the run; by name if the model has several.
      log: gets the output of native code.
      drawn: names of the answers that depend on random numbers, see `runner.export.drawn`.
      batch: examples that are predicted at once.

    Returns:
      `SavedModel` and `model.keras` -> comparison, as far as they were written.

    Raises:
      EngineError: the export can't be loaded.
    """
    served_arrays = {name: arrays[name].astype(spec.dtype) for name, spec in served.inputs.items()}
    expected = served.answers(run)
    compared: dict[str, Comparison] = {}
    try:
        with quiet_native_log(log):
            if written.saved_model:
                answers = _in_batches(_saved_model(folder / SAVED_MODEL), served_arrays, batch)
                compared["SavedModel"] = compare(expected, answers, drawn)
            if written.keras == KERAS_FILE:
                inputs = served.model_inputs(array_functions(np), served_arrays)
                named = inputs if isinstance(inputs, Mapping) else {"": inputs}
                outputs = _in_batches(_keras_file(folder / KERAS_FILE, library), named, batch)
                # The file has the model's outputs and not the task's answers: by name if the run has several.
                answers = served.answers(outputs if isinstance(run, Mapping) else next(iter(outputs.values())))
                compared[KERAS_FILE] = compare(expected, answers, drawn)
    except EngineError:
        raise
    except Exception as error:
        # Keras and TensorFlow share no class of errors.
        raise EngineError(f"the export can't be loaded again: {describe(error)}; see {log}") from error
    return compared


def _in_batches(
    answer: Callable[[Mapping[str, Array]], Mapping[str, Any]], arrays: Mapping[str, Array], batch: int
) -> dict[str, Array]:
    """Returns a model's outputs (N, ...) by name, computed from so many examples at a time."""
    parts: dict[str, list[Array]] = {}
    for start in range(0, len(next(iter(arrays.values()))), batch):
        outputs = answer({name: array[start : start + batch] for name, array in arrays.items()})
        for name, output in outputs.items():
            parts.setdefault(name, []).append(np.asarray(output))
    return {name: np.concatenate(rows) for name, rows in parts.items()}


def _saved_model(path: Path) -> Callable[[Mapping[str, Array]], Mapping[str, Any]]:
    tf = importlib.import_module("tensorflow")
    loaded = tf.saved_model.load(str(path))

    def answer(arrays: Mapping[str, Array]) -> Mapping[str, Any]:
        # By way of the loaded model, which its signature does not keep alive.
        outputs: Mapping[str, Any] = loaded.signatures[NAME](**{n: tf.constant(array) for n, array in arrays.items()})
        return outputs

    return answer


def _keras_file(path: Path, library: str) -> Callable[[Mapping[str, Array]], Mapping[str, Any]]:
    model = importlib.import_module(library).models.load_model(path)

    def answer(inputs: Mapping[str, Array]) -> Mapping[str, Any]:
        outputs = model(inputs if len(inputs) > 1 else next(iter(inputs.values())), training=False)
        return {name: np.asarray(output, np.float32) for name, output in named_outputs(outputs).items()}

    return answer
