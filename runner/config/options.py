"""Arguments that YAML has next to a group's own keys: of a builder, a data source, an optimizer's class or a task.

Augmentation steps have such arguments too.

In YAML and on the command line, `_target_` names a callable and its keyword arguments are written next to it. The
dataclasses have the callable as `target` and the arguments as `options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from runner.config import schema_task
from runner.config.build import build, fields_of, unknown_key
from runner.config.schema import AugmentConfig, DatasetConfig, ModelConfig, OptimizerConfig, TaskConfig, TrainerConfig
from runner.config.schema_task import OutputConfig
from runner.config.values import check_name
from runner.errors import ConfigError, invalid

_TARGET = "_target_"
# Key of a task that is made of others.
_OUTPUTS = "outputs"

# Fields that are written in another form in YAML.
_NOT_IN_YAML = ("target", "options")


def arranged(group: str, content: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a group, as plain values, as its dataclass has them. Raises ConfigError if it can't."""
    if group == "model":
        return _with_options("model", content, _yaml_keys(ModelConfig))
    if group == "dataset":
        return _dataset(content)
    if group == "task":
        return _task(content)
    if group == "optimizer":
        return _optimizer(content)
    return content


def task_options(config: TaskConfig) -> Any:
    """Returns the options of a task as the dataclass of its name."""
    return build(schema_task.OPTIONS[config.name], config.options, "task")


def _with_options(key: str, content: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
    """Returns a mapping whose keys that are not the group's own are below `options`."""
    target = content.get(_TARGET, "")
    if not isinstance(target, str):
        fix = f"set {key}.{_TARGET}=package.module.function"
        raise invalid(f"{key}.{_TARGET}", target, problem="must be an import path", fix=fix)
    own_values, options = _divided(content, own)
    options.pop(_TARGET, None)
    return {**own_values, "target": target, "options": options}


def _without_options(group: str, content: dict[str, Any], own: Sequence[str]) -> dict[str, Any]:
    """Returns the keys of a group without a callable. Raises ConfigError if a field has the name that it has here."""
    for name in _NOT_IN_YAML:
        if name in content:
            raise unknown_key(f"{group}.{name}", own)
    return content


def _divided(content: Mapping[str, Any], own: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divides a mapping into the keys that a dataclass has, and all others."""
    own_values = {name: value for name, value in content.items() if name in own}
    others = {name: value for name, value in content.items() if name not in own}
    return own_values, others


def _yaml_keys(kind: type) -> list[str]:
    return [name for name in fields_of(kind) if name not in _NOT_IN_YAML]


def _dataset(content: dict[str, Any]) -> dict[str, Any]:
    steps = content.get("augment")
    if isinstance(steps, list):
        content = content | {"augment": [_step(index, step) for index, step in enumerate(steps)]}
    if _TARGET in content:
        return _with_options("dataset", content, _yaml_keys(DatasetConfig))
    return _without_options("dataset", content, _yaml_keys(DatasetConfig))


def _step(index: int, step: object) -> object:
    """Returns an augmentation step as its dataclass has it; one that is no mapping is rejected by its type later."""
    if not isinstance(step, Mapping):
        return step
    return _with_options(f"dataset.augment[{index}]", step, _yaml_keys(AugmentConfig))


def _task(content: dict[str, Any]) -> dict[str, Any]:
    own = list(fields_of(TaskConfig))
    own.remove("options")
    name = str(content.get("name", TaskConfig.name))
    own_values, options = _typed_options(name, content, own, "task")
    target = _as_list(content.get("target"))
    if target is None:
        target = []
    if _OUTPUTS in options:
        target = _target_of_outputs(target, options[_OUTPUTS])
    return {**own_values, "target": target, "inputs": _as_list(content.get("inputs")), "options": options}


def _typed_options(
    name: str, content: Mapping[str, Any], own: Sequence[str], key: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the plain values of the keys that every task has, and those of one task with their types."""
    check_name(f"{key}.name", name, schema_task.OPTIONS)
    kind = schema_task.OPTIONS[name]
    own_values, options = _divided(content, own)
    allowed = list(fields_of(kind))
    if "target" in allowed:
        allowed[allowed.index("target")] = _TARGET
    for option in options:
        if option not in allowed:
            raise unknown_key(f"{key}.{option}", [*own, *allowed], of=f"task={name}")
    if _TARGET in options:
        # In YAML, `target` names the arrays to predict.
        options["target"] = options.pop(_TARGET)
    # In YAML, null lets the command line set a whole mapping without `+`.
    if _OUTPUTS in options and options[_OUTPUTS] is None:
        options[_OUTPUTS] = {}
    if isinstance(options.get(_OUTPUTS), Mapping):
        options[_OUTPUTS] = _outputs(options[_OUTPUTS])
    return own_values, asdict(build(kind, options, key))


def _outputs(content: Mapping[str, Any]) -> dict[str, Any]:
    own = list(fields_of(OutputConfig))
    own.remove("options")
    outputs: dict[str, Any] = {}
    for name, output in content.items():
        # `age: regression` is short for `age: {name: regression}`.
        if isinstance(output, str):
            output = {"name": output}
        if not isinstance(output, Mapping) or "name" not in output:
            problem = "needs the task that judges this output"
            fix = f"add +task.outputs.{name}.name=regression or another task"
            raise invalid(f"task.outputs.{name}", output, problem=problem, fix=fix)
        key = f"task.outputs.{name}"
        own_values, options = _typed_options(str(output["name"]), output, own, key)
        if options.get("target") == "":
            raise ConfigError(f"{key}.{_TARGET} is required; set {key}.{_TARGET}=package.module.function")
        target = _as_list(output.get("target"))
        outputs[str(name)] = {**own_values, "target": target or [str(name)], "options": options}
    return outputs


def _target_of_outputs(target: object, outputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the arrays that the outputs, by name, predict, each once; such a task has no `task.target` itself."""
    if target:
        problem = "can't be set with task.outputs, which have a target each"
        fix = "remove task.target, and set task.outputs.<name>.target"
        raise invalid("task.target", target, problem=problem, fix=fix)
    names: dict[str, None] = {}
    for output in outputs.values():
        names |= dict.fromkeys(output["target"])
    return list(names)


def output_tasks(config: TaskConfig) -> dict[str, TaskConfig]:
    """Returns the config of the task that judges each output, by the output's name; empty for a task of one output."""
    tasks = {}
    for name, output in config.options.get(_OUTPUTS, {}).items():
        tasks[name] = TaskConfig(
            name=output["name"],
            target=output["target"],
            inputs=config.inputs,
            example_weight=output["example_weight"] or config.example_weight,
            scale_images=config.scale_images,
            options=output["options"],
        )
    return tasks


def import_paths(
    model: ModelConfig, optimizer: OptimizerConfig, dataset: DatasetConfig, task: TaskConfig, trainer: TrainerConfig
) -> list[str]:
    """Returns the import paths of the user's code in a config, which runs in the program's own process.

    They are those of the model builder, optimizer, callbacks, data source, augmentation, loss and metrics.
    """
    paths = [model.target, optimizer.target, dataset.target, *(entry[_TARGET] for entry in trainer.callbacks)]
    # The parts of a mixture are mappings as typed. They have no augmentation of their own.
    for part in dataset.parts:
        paths.append(part.get(_TARGET) or "")
    paths += [step.target for step in dataset.augment]
    # A task with a function of the user has only functions as its other strings.
    for judging in (task, *output_tasks(task).values()):
        if "target" not in judging.options:
            continue
        for value in judging.options.values():
            if isinstance(value, str):
                paths.append(value)
            elif isinstance(value, list):
                paths += value
    # Built-in parts have an empty path, or one of this package.
    return [path for path in paths if path and not path.startswith("runner.")]


# Arguments of Keras's optimizers that are the run's own here, the same for every optimizer -> what to do.
OWN_FORMS = {
    "clipnorm": "set optimizer.clip.norm",
    "global_clipnorm": "set optimizer.clip.global_norm",
    "clipvalue": "set optimizer.clip.value",
    "use_ema": "set optimizer.ema.decay",
    "ema_momentum": "set optimizer.ema.decay",
    "ema_overwrite_frequency": "set optimizer.ema.decay",
    "gradient_accumulation_steps": "set trainer.accumulate_steps",
    "loss_scale_factor": "remove it: the loss is always float32",
}

# Keys of every optimizer. Any other is of an update rule, and of a class or a function it is an argument.
_OF_EVERY_OPTIMIZER = ("name", "learning_rate", "schedule", "clip", "ema", "class_name", "groups", "gradient_norm")


def _optimizer(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of `optimizer`, with the arguments of a class or a function in `options`."""
    has_class = content.get("class_name") is not None
    if not has_class and _TARGET not in content:
        return _without_options("optimizer", content, _yaml_keys(OptimizerConfig))
    if has_class:
        for key, fix in OWN_FORMS.items():
            if key in content:
                problem = "is not an option of the class here, but of the run"
                raise invalid(f"optimizer.{key}", content[key], problem=problem, fix=fix)
    return _with_options("optimizer", content, _OF_EVERY_OPTIMIZER)


def _as_list(value: Any) -> Any:
    """Returns one name as a list of it."""
    if isinstance(value, str):
        return [value]
    return value
