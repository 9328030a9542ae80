# ruff: noqa: D102 - a task overrides what Task documents
"""Several outputs of a model, each judged by a task of its own; the loss is the weighted sum of their losses.

Names are Keras's: the metric `accuracy` of the output `gender` is `gender_accuracy`, its own loss `gender_loss`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from runner.arrays import Arrays, Tensor
from runner.config import values
from runner.config.options import output_tasks, task_options
from runner.config.schema_task import SeveralOptions, TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec, DataSource, Value
from runner.errors import ConfigError, did_you_mean, invalid
from runner.task import registry
from runner.task.base import (
    LOSS,
    Evaluation,
    Outputs,
    OutputSpec,
    Report,
    Shapes,
    Table,
    Task,
    TaskData,
    named_outputs,
)
from runner.task.metrics import MINIMIZE, prefixed
from runner.task.supervised import counted

# Between an output's name and the name of one of its sums or constants. No output's name has it.
_OF = "/"
# The task's own sums of each output, beside those of the output's task.
_LOSS_SUM = "loss of the output"
_TERMS = "terms of the output"

# What may be a key or a task in a message of an output's task, which knows nothing of the other outputs; behind `=` it
# is a user's import path.
_KEY = re.compile(r"(?<![\w.=])task\.(?!outputs\b)")
_NAME = re.compile(r"(?<![\w.=])task=(\w+)")


def _outputs(options: SeveralOptions) -> dict[str, TaskConfig]:
    outputs = {name: asdict(output) for name, output in options.outputs.items()}
    return output_tasks(TaskConfig("several", options={"outputs": outputs}))


def _metric(output: str, name: str) -> str:
    return f"{output}_{name}"


@contextmanager
def _named(output: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_of_output(str(error), output)) from error


def _of_output(message: str, output: str) -> str:
    key = f"task.outputs.{output}"
    message = _NAME.sub(rf"{key}.name=\1", _KEY.sub(f"{key}.", message))
    return re.sub(r"\bthe model's outputs?\b", f"the model's output {output}", message)


def _part(values_by_name: Mapping[str, Value], output: str) -> dict[str, Value]:
    prefix = f"{output}{_OF}"
    return {name.removeprefix(prefix): value for name, value in values_by_name.items() if name.startswith(prefix)}


class Several(Task):
    """One task per output of a model, by the output's name.

    An example counts 1. The loss of an output is the mean that its task computes alone, times its weight.

    Attributes:
      tasks: that judges each output, by the output's name.
      loss_weights: factor of each output's loss.
    """

    @classmethod
    def metric_directions(cls, options: SeveralOptions) -> dict[str, str]:
        metrics = {_metric(output, LOSS): MINIMIZE for output in options.outputs}
        for output, config in _outputs(options).items():
            metrics |= prefixed(f"{output}_", registry.metric_directions(config))
        return metrics

    @classmethod
    def step_metric_names(cls, options: SeveralOptions) -> tuple[str, ...]:
        names = [_metric(output, LOSS) for output in options.outputs]
        for output, config in _outputs(options).items():
            for name in registry.step_metric_names(config):
                names.append(_metric(output, name))
        return tuple(names)

    @classmethod
    def check_options(cls, options: SeveralOptions) -> None:
        """Checks each output's task and its options, and that no two metrics have one name."""
        owners: dict[str, str] = {}
        for output, config in _outputs(options).items():
            key = f"task.outputs.{output}"
            entry = registry.entry(config)
            if not entry.judges_outputs:
                fix = "set another task, such as positions, regression or custom"
                raise invalid(f"{key}.name", config.name, problem="can't judge one of several outputs", fix=fix)
            own_options = task_options(config)
            values.check(own_options, key)
            with _named(output):
                entry.load().check_options(own_options)
            for name in (*registry.metric_directions(config), *registry.step_metric_names(config)):
                metric = _metric(output, name)
                owner = owners.setdefault(metric, output)
                if owner != output:
                    problem = f"has a metric {metric}, as {owner} has"
                    raise invalid(key, config.name, problem=problem, fix="rename one of the two outputs")

    def __init__(self, config: TaskConfig, options: SeveralOptions, data: TaskData) -> None:
        self.loss_weights: dict[str, float] = {}
        self.tasks: dict[str, Task] = {}
        configs = output_tasks(config)
        inputs = _inputs(config, configs, data.arrays)
        for name, output_config in configs.items():
            self.loss_weights[name] = options.outputs[name].weight
            own = TaskConfig(
                output_config.name, output_config.target, inputs, output_config.example_weight, output_config.options
            )
            constants = _part(data.constants, name)
            with _named(name):
                own_data = TaskData(data.arrays, data.train, constants, data.vocabulary)
                self.tasks[name] = registry.entry(own).load()(own, task_options(own), own_data)
        self.arrays = self._find_arrays()
        self.input_names = tuple(inputs)
        self.outputs = OutputSpec(None, by_name={name: task.outputs for name, task in self.tasks.items()})
        self.directions = {LOSS: MINIMIZE, **self.metric_directions(options)}
        self.step_metrics = self.step_metric_names(options)
        self.constants = {}
        # The terms of each example of weight 1 where these don't depend on its labels.
        self._fixed_terms: dict[str, float] = {}
        for name, task in self.tasks.items():
            self.constants = {**self.constants, **prefixed(f"{name}{_OF}", task.constants)}
            self.keeps_outputs &= task.keeps_outputs
            self.tokens = max(self.tokens, task.tokens)
            self.reads_batch |= task.reads_batch
            self.runs_user_code |= task.runs_user_code
            if not task.weighs_arrays:
                self._fixed_terms[name] = float(task.weights({WEIGHT: np.ones(1, np.float32)})[0])

    def without_class_weights(self) -> Task:
        several = copy.copy(self)
        several.tasks = {name: task.without_class_weights() for name, task in self.tasks.items()}
        return several

    def _find_arrays(self) -> dict[str, ArraySpec]:
        arrays: dict[str, ArraySpec] = {}
        for task in self.tasks.values():
            for name, spec in task.arrays.items():
                if name not in arrays or spec.dims:
                    arrays[name] = spec
        return arrays

    def _share(self, ops: Arrays, name: str, batch: Mapping[str, Tensor]) -> Tensor | float:
        """Returns the factor that makes an output's sum per example a share of the mean over the examples.

        The engine divides sums by the number of examples, an output's task by its number of loss terms.
        """
        if name in self._fixed_terms:
            return 1.0 / self._fixed_terms[name]
        terms = ops.sum(self.tasks[name].counted_terms(ops, batch))
        examples = ops.sum(ops.cast(batch[WEIGHT], "float32"))
        # A batch without a counted label has a loss of 0, not 0 / 0.
        no_terms = ops.equal(terms, 0.0)
        return ops.where(no_terms, ops.zeros_like(terms), examples / ops.where(no_terms, ops.ones_like(terms), terms))

    def reduced(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Outputs:
        by_name = named_outputs(outputs)
        return {name: task.reduced(ops, by_name[name], batch) for name, task in self.tasks.items()}

    def _losses(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns each output's share (B,) of its mean loss, by the output's name."""
        by_name = named_outputs(outputs)
        losses = {}
        for name, task in self.tasks.items():
            losses[name] = task.loss(ops, by_name[name], batch) * self._share(ops, name, batch)
        return losses

    def loss(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        weighted = [self.loss_weights[name] * loss_b for name, loss_b in self._losses(ops, outputs, batch).items()]
        total_b = weighted[0]
        for loss_b in weighted[1:]:
            total_b = total_b + loss_b
        return total_b

    def metrics(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns each output's loss (B,) without its weight, and the metrics (B,) of its task."""
        by_name = named_outputs(outputs)
        metrics = {}
        for name, loss_b in self._losses(ops, outputs, batch).items():
            metrics[_metric(name, LOSS)] = loss_b
        for name, task in self.tasks.items():
            share = self._share(ops, name, batch)
            for key, value_b in task.metrics(ops, by_name[name], batch).items():
                metrics[_metric(name, key)] = value_b * share
        return metrics

    def totals(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        by_name = named_outputs(outputs)
        totals: dict[str, Tensor] = {}
        for name, task in self.tasks.items():
            own = task.totals(ops, by_name[name], batch)
            own[_LOSS_SUM] = counted(ops, batch, task.loss(ops, by_name[name], batch), [0])
            own[_TERMS] = counted(ops, batch, task.counted_terms(ops, batch), [0])
            totals |= prefixed(f"{name}{_OF}", own)
        return totals

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        addends: dict[str, Array] = {}
        for name, task in self.tasks.items():
            own = _part(totals, name)
            loss_sum = own.pop(_LOSS_SUM)
            terms = own.pop(_TERMS)
            addends |= prefixed(f"{name}{_OF}", {**task.addends(own), _LOSS_SUM: loss_sum, _TERMS: terms})
        return addends

    def joined(self, sums: Mapping[str, Array], addends: Mapping[str, Array]) -> dict[str, Array]:
        joined = super().joined(sums, addends)
        for name, task in self.tasks.items():
            joined |= prefixed(f"{name}{_OF}", task.joined(_part(sums, name), _part(addends, name)))
        return joined

    def _mean_losses(self, totals: Mapping[str, Array]) -> dict[str, float]:
        means = {}
        for name in self.tasks:
            own = _part(totals, name)
            means[name] = float(own[_LOSS_SUM]) / (float(own[_TERMS]) or 1.0)
        return means

    def mean_loss(self, totals: Mapping[str, Array]) -> float:
        """Returns the weighted sum of the outputs' mean losses, each over all terms of all batches."""
        if len(self._fixed_terms) == len(self.tasks):
            return super().mean_loss(totals)
        return sum(self.loss_weights[name] * mean for name, mean in self._mean_losses(totals).items())

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        metrics = {_metric(name, LOSS): mean for name, mean in self._mean_losses(totals).items()}
        for name, task in self.tasks.items():
            metrics |= prefixed(f"{name}_", task.summary(_part(totals, name)))
        return metrics

    def check(self, shapes: Shapes) -> None:
        for name, task in self.tasks.items():
            if name not in shapes:
                problem = f"the model has no output {name}; it has {', '.join(shapes)}"
                fix = did_you_mean(name, shapes, "let the model return a dict of outputs with these names")
                raise invalid("task.outputs", f"[{', '.join(self.tasks)}]", problem=problem, fix=fix)
            with _named(name):
                task.check({name: shapes[name]})
        for name in shapes:
            if name not in self.tasks:
                raise ConfigError(
                    f"model._target_: its output {name} has no task (task.outputs has {', '.join(self.tasks)}); add "
                    f"task.outputs.{name}, or remove the output from the model"
                )

    def check_split(self, source: DataSource, split: str) -> None:
        for name, task in self.tasks.items():
            with _named(name):
                task.check_split(source, split)

    def predictions(self, ops: Arrays, outputs: Outputs) -> dict[str, Tensor]:
        """Returns the predictions of each output's task: `age` if there is one, else `gender_logits` and others."""
        by_name = named_outputs(outputs)
        answers: dict[str, Tensor] = {}
        for name, task in self.tasks.items():
            own = task.predictions(ops, by_name[name])
            if len(own) == 1:
                (answers[name],) = own.values()
            else:
                answers |= prefixed(f"{name}_", own)
        return answers

    def warnings(self, evaluation: Evaluation) -> list[str]:
        found = []
        for name, task in self.tasks.items():
            for warning in task.warnings(self._evaluation_of(name, evaluation)):
                found.append(_of_output(warning, name))
        return found

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns the files and tables of each output's task, with the output's name before theirs."""
        files: dict[str, Callable[[Path], None]] = {}
        tables: dict[str, Table] = {}
        for name, task in self.tasks.items():
            report = task.report(self._evaluation_of(name, evaluation), source, split)
            files |= prefixed(f"{name}_", report.files)
            tables |= prefixed(f"{name}: ", report.tables)
        return Report(files, tables)

    def _evaluation_of(self, name: str, evaluation: Evaluation) -> Evaluation:
        metrics = {key: evaluation.metrics[_metric(name, key)] for key in self.tasks[name].directions}
        totals = _part(evaluation.totals, name)
        if totals:
            totals[LOSS] = totals[_LOSS_SUM]
            totals[WEIGHT] = totals[_TERMS]
        outputs = evaluation.named_outputs.get(name, np.zeros((0,), np.float32))
        return Evaluation(metrics, evaluation.examples, totals, outputs)


def _inputs(config: TaskConfig, outputs: Mapping[str, TaskConfig], arrays: Mapping[str, ArraySpec]) -> list[str]:
    if config.inputs is not None:
        return list(config.inputs)
    others = {config.example_weight}
    for output in outputs.values():
        others |= {*output.target, output.example_weight}
        for option in registry.entry(output).array_options:
            others.add(output.options[option])
    return [name for name in arrays if name not in others]
