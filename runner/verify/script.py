"""A user's Keras script, verified as it is: `runner.verify script=train.py`.

The script runs in a process of its own, and its first `model.fit` is watched for some steps: the state before, and
the batches. The function that `fit` compiled for the distribution is then compared with the model's own `train_step`
on one device, without a distribution, by `meshproof`; and so is the first `model.evaluate` after that.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.config.import_path import where
from runner.config.schema import VerifyConfig
from runner.console import Console
from runner.errors import EngineError, describe, invalid
from runner.host import stages
from runner.host.late import late
from runner.host.libraries import installed
from runner.verify import meshproof
from runner.verify.report import Verification, failure_of, from_fields

if TYPE_CHECKING:
    import jax
    import keras
else:
    # A script sets up both before it imports them.
    jax = late("jax")
    keras = late("keras")

_TRAINER = "keras.src.backend.jax.trainer"
# Step of Keras -> lists of a model's state in Keras's order: names of what has the variables.
_LISTS = {
    "train": ("trainable_variables", "non_trainable_variables", "optimizer", "metrics_variables"),
    "test": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
}
State = dict[str, Any]


class UnfitError(Exception):
    """A script that can't be verified; the message says why, and what to change."""


class _EnoughError(BaseException):
    """Ends a watched call; no `except Exception` of a script may take it."""


def run(script: str, options: VerifyConfig, folder: Path) -> None:
    """Verifies a script, prints each table and writes verify.json, and verify_evaluate.json if it evaluates.

    Raises:
      ConfigError: there is no such file, or what it does can't be verified.
      EngineError: a mismatch, or an inconclusive verdict that is not allowed.
    """
    console = Console()
    if not Path(script).is_file():
        raise invalid("script", script, problem="no such file", fix="name the Python file that calls model.fit")
    log = folder / "verify.log"
    title = f"verify: {script} on its mesh, then on one device"
    with stages.stage(title), log.open("wb") as output, tempfile.TemporaryDirectory(prefix="runner-verify-") as files:
        result_file = Path(files) / "result.json"
        command = [sys.executable, "-m", __name__, str(result_file), script, str(options.steps)]
        place = {"KERAS_BACKEND": "jax"} | os.environ
        done = subprocess.run(command, env=place, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        if not result_file.is_file():
            end = f"its process exited with code {done.returncode}"
            raise EngineError(f"script={script}: {end}; its output is in {log}")
        content = json.loads(result_file.read_text())
    if content["error"]:
        raise invalid("script", script, problem=content["error"], fix=f"its output is in {log}")
    failures = []
    for name, fields in zip(("verify.json", "verify_evaluate.json"), content["found"], strict=False):
        report = from_fields(fields)
        report.write(folder, installed(("keras", "jax", "numpy", "runner")), name)
        console.print(report.table(console.width))
        console.print_lines([report.basis()])
        failure = failure_of(options, report)
        if failure:
            failures.append(failure)
        else:
            console.print_lines([report.line()])
    if failures:
        raise EngineError("; ".join(failures))


def main() -> None:
    """Runs a script, and writes what its steps compare to, or the error, into a file."""
    result_file = Path(sys.argv[1])
    script = sys.argv[2]
    watch = Watch(steps=int(sys.argv[3]))
    sys.meta_path.insert(0, _Finder(watch))
    sys.argv = [script]
    sys.path[0] = str(Path(script).resolve().parent)
    error = ""
    try:
        runpy.run_path(script, run_name="__main__")
    except UnfitError as unfit:
        error = str(unfit)
    except (_EnoughError, SystemExit):
        pass
    except Exception as raised:
        traceback.print_exc()
        # What a script does with a model that was trained for a few steps is not its author's fault.
        if not watch.found:
            error = f"raised {describe(raised)}{where(raised)}; correct that line"
    if not error and not watch.found:
        error = "calls no model.fit of Keras on JAX; set KERAS_BACKEND=jax, and call fit as the script trains"
    content = {"error": error, "found": [asdict(each) for each in watch.found]}
    result_file.write_text(json.dumps(content))


class Watch:
    """What is watched of a script.

    Attributes:
      steps: of a watched call, at most.
      found: the comparisons.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.found: list[Verification] = []
        self._is_busy = False

    def install(self, trainer: ModuleType) -> None:
        """Replaces `fit` and `evaluate` of Keras's trainer."""
        kind = trainer.JAXTrainer
        kind.fit = self._watched(kind.fit, "train")
        kind.evaluate = self._watched(kind.evaluate, "test")

    def _watched(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            is_first_fit = name == "train" and not self.found
            is_first_evaluate = name == "test" and len(self.found) == 1
            if self._is_busy or not (is_first_fit or is_first_evaluate):
                if name == "train" and self.found:
                    raise _EnoughError  # the script trains again: its first steps were compared
                return original(model, *args, **kwargs)
            self._is_busy = True
            recorder = Recorder(model, name, self.steps)
            try:
                with recorder.attached():
                    result = original(model, *args, **kwargs)
            except _EnoughError:
                result = None
            finally:
                self._is_busy = False
            self.found.append(recorder.compared())
            if name == "test":
                raise _EnoughError
            return result or model.history

        return call


class Recorder:
    """A watched call of a model: the state that it begins with, and its batches."""

    def __init__(self, model: Any, name: str, steps: int) -> None:
        self._model = model
        self._name = name
        self._steps = steps
        self._batches: list[Any] = []
        self._state: State = {}
        self._function: Callable[..., Any] | None = None
        self._distribution = keras.distribution.distribution()
        if self._distribution is None:
            fix = "call keras.distribution.set_distribution(...) before the model is built"
            raise UnfitError(f"sets no distribution before it calls {'fit' if name == 'train' else 'evaluate'}; {fix}")
        if model.steps_per_execution != 1:
            raise UnfitError(
                f"compiles with steps_per_execution={model.steps_per_execution}; leave it out for the proof"
            )

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Records what the compiled function of the model gets."""
        attribute = f"make_{self._name}_function"
        make = getattr(self._model, attribute)

        def recording(force: bool = False) -> None:
            make(force=force)
            self._function = getattr(self._model, f"{self._name}_function")
            setattr(self._model, f"{self._name}_function", self._call)

        object.__setattr__(self._model, attribute, recording)
        try:
            yield
        finally:
            object.__delattr__(self._model, attribute)
            object.__setattr__(self._model, f"{self._name}_function", self._function)

    def _call(self, state: Any, iterator: Iterator[Any]) -> Any:
        def kept(leaf: Any) -> Any:
            # The function donates the state's buffers.
            return jax.device_put(np.array(leaf), leaf.sharding) if isinstance(leaf, jax.Array) else leaf

        if len(self._batches) == self._steps:
            raise _EnoughError
        batch = next(iterator)
        if not self._batches:
            self._state = self._named(jax.tree.map(kept, list(state)))
        self._batches.append(jax.tree.map(kept, batch))
        assert self._function is not None
        return self._function(state, iter([batch]))

    def _variables(self) -> list[list[Any]]:
        found = []
        for name in _LISTS[self._name]:
            holder = getattr(self._model, name)
            found.append(list(holder.variables if name == "optimizer" else holder))
        return found

    def _named(self, state: Sequence[Sequence[Any]]) -> State:
        """Returns the values of a state by the paths of their variables; one that is there twice gets a number."""
        named: State = {}
        for variables, values in zip(self._variables(), state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                path = variable.path
                named[f"{path}_{len(named)}" if path in named else path] = value
        return named

    def _listed(self, state: Mapping[str, Any]) -> tuple[list[Any], ...]:
        values = iter(state.values())
        return tuple([next(values) for _ in variables] for variables in self._variables())

    def compared(self) -> Verification:
        """Returns how the compiled function compares with one device.

        Raises:
          UnfitError: `meshproof` can't compare them.
        """
        run: Callable[..., Any] = self._evaluation
        batches: list[Any] = [tuple(self._batches)]
        steps = 0
        gradients = None
        # JAX sorts the names of a mapping, and Keras's lists have an order of their own.
        order = list(self._state)

        def on(distribution: Any, take: Callable[[State, Any], Any]) -> Callable[[State, Any], Any]:
            def call(state: State, batch: Any) -> Any:
                with _distributed(distribution):
                    return take({path: state[path] for path in order}, batch)

            return call

        if self._name == "train":
            run = self._training
            batches = self._batches
            steps = len(batches)
            own = getattr(self._model.train_step, "__func__", None)
            # What another step than Keras's takes the gradients of is not known.
            if own is importlib.import_module(_TRAINER).JAXTrainer.train_step:
                gradients = on(self._distribution, self._gradient()), on(None, self._gradient())
        try:
            report = meshproof.compare(
                on(self._distribution, partial(run, self._function)),
                on(None, partial(run, self._plain())),
                self._state,
                batches,
                parameters=order[: len(self._model.trainable_variables)],
                gradients=gradients,
                steps=steps,
            )
        except ValueError as error:
            raise UnfitError(f"can't be compared: {error}") from error
        mesh = self._distribution.device_mesh
        words = " ".join(f"{axis}={size}" for axis, size in zip(mesh.axis_names, mesh.shape, strict=True))
        devices = int(mesh.devices.size)
        return Verification(report.checks, report.steps, words, report.terms, report.rounding, devices)

    def _plain(self) -> Callable[..., Any]:
        """Returns the model's own step, compiled for one device."""
        own = getattr(self._model, f"{self._name}_step")
        compiled = jax.jit(lambda state, data: own(state, data))
        return lambda state, iterator: compiled(state, next(iterator))

    def _gradient(self) -> Callable[[State, Any], State]:
        """Returns the gradients of the loss that Keras's own step takes, of the same seeds and weights of examples."""

        def of_loss(state: Any, data: Any) -> Any:
            trained, others, slots, metrics = state
            x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
            gradient = jax.grad(self._model.compute_loss_and_updates, has_aux=True)
            return gradient(trained, others, metrics, x, y, weight, training=True, optimizer_variables=slots)[0]

        # Each side has its own, since what JAX traces for one distribution serves any other. Weights come first.
        compiled = jax.jit(of_loss)
        return lambda state, batch: dict(zip(state, compiled(self._listed(state), batch), strict=False))

    def _training(self, function: Callable[..., Any], state: State, batch: Any) -> tuple[State, Any]:
        logs, new_state = function(self._listed(state), iter([batch]))
        return self._named(new_state), logs

    def _evaluation(self, function: Callable[..., Any], state: State, batches: Any) -> tuple[State, Any]:
        # The function donates the metrics' buffers.
        lists = jax.tree.map(jax.numpy.copy, self._listed(state))
        for batch in batches:
            logs, lists = function(lists, iter([batch]))
        return state, logs


class _Finder(MetaPathFinder):
    """Installs the watch as soon as the script has imported Keras's trainer, after what it sets up before."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Finds the trainer's module as the other finders do, and has the watch installed when it is executed."""
        if name != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_install(module: ModuleType) -> None:
                execute(module)
                self._watch.install(module)

            spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


@contextmanager
def _distributed(distribution: Any) -> Iterator[None]:
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(distribution)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


if __name__ == "__main__":
    main()
