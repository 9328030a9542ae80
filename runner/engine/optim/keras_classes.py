"""Keras's own optimizers for a config: their state by name, and their errors. Keras itself checks their options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from runner.config.build import build
from runner.config.options import OWN_FORMS, arranged
from runner.config.schema import ClipConfig, OptimizerConfig
from runner.engine.optim.rules import OPTIMIZERS, Slot
from runner.errors import ConfigError, invalid, listed, shown

# Variables of fewer dims have no factored state.
_LEAST_FACTORED = 2

# conf/optimizer/adam.yaml for a model of the user: such a config chooses no optimizer.
DEFAULT = OptimizerConfig(beta_1=0.9, beta_2=0.999, epsilon=1e-7)
# Keras's schedules -> our keys, each with Keras's argument, or the value.
_SCHEDULES = {
    "CosineDecay": {"name": "cosine", "decay_steps": "decay_steps", "final_factor": "alpha"},
    "ExponentialDecay": {
        "name": "exponential", "decay_steps": "decay_steps", "decay_rate": "decay_rate", "staircase": "staircase",
    },
}  # fmt: skip

# Our key of `optimizer.clip` -> Keras's argument.
_CLIP_ARGUMENTS = {"norm": "clipnorm", "global_norm": "global_clipnorm", "value": "clipvalue"}


@dataclass(frozen=True)
class KerasSlot:
    """One kind of state of a class.

    Attributes:
      attribute: of the built optimizer: a list with a variable per trainable variable, empty or missing if the
        optimizer keeps no such state; or one variable, of the whole optimizer.
      without: dim that the state lacks, counted from the end; None: it has all. Variables with a single dim don't have
        a factored state; Keras has a scalar without a meaning in its place.
      initial: value at the start, or the attribute that has it. None: the variable's own initial value.
    """

    attribute: str
    without: int | None = None
    initial: float | str | None = 0.0


_M = KerasSlot("_momentums")
_V = KerasSlot("_velocities")
_MOMENTUM = KerasSlot("momentums")
_ADAM = {"m": _M, "v": _V, "v_hat": KerasSlot("_velocity_hats")}
_ACCUMULATOR = KerasSlot("_accumulators", initial="initial_accumulator_value")

# Name of a class in `keras.optimizers` -> name in paths of state -> the state.
CLASSES: Mapping[str, Mapping[str, KerasSlot]] = {
    "Adadelta": {
        "accumulated_grad": KerasSlot("_accumulated_grads"),
        "accumulated_delta_var": KerasSlot("_accumulated_delta_vars"),
    },
    "Adafactor": {"r": KerasSlot("_r", without=1), "c": KerasSlot("_c", without=2), "v": KerasSlot("_v")},
    "Adagrad": {"accumulator": _ACCUMULATOR},
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "Adamax": {"m": KerasSlot("_m"), "u": KerasSlot("_u")},
    "Ftrl": {"accumulator": _ACCUMULATOR, "linear": KerasSlot("_linears")},
    "Lamb": {"m": _M, "v": _V},
    "Lion": {"m": _M},
    "Muon": {"m": _MOMENTUM, "v": KerasSlot("adam_velocities")},
    "Nadam": {"m": _M, "v": _V, "u_product": KerasSlot("_u_product", initial=1.0)},
    "RMSprop": {
        "velocity": _V,
        "average": KerasSlot("_average_gradients"),
        "momentum": _M,
    },
    "SGD": {"momentum": _MOMENTUM},
    "ScheduleFreeAdamW": {"z": KerasSlot("_momentums", initial=None), "v": _V},
}


@contextmanager
def options_checked(config: OptimizerConfig) -> Iterator[None]:
    """Turns an error of Keras about options of a class into a line that names the one that Keras names."""
    try:
        yield
    except (TypeError, ValueError) as error:
        # Without options it is not the config's fault, but for example that of a constraint of the model.
        if not config.options:
            raise
        text = " ".join(str(error).split())
        blamed = []
        for key, value in config.options.items():
            assignment = f"optimizer.{key}={shown(value)}"
            if re.search(rf"\b{re.escape(key)}\b", text):
                blamed = [assignment]
                break
            blamed.append(assignment)
        raise ConfigError(f"{', '.join(blamed)}: Keras rejects it: {text}; see keras.io/api/optimizers") from error


def stock_optimizer(config: OptimizerConfig, rate: object, keras: ModuleType) -> Any:
    """Returns Keras's own optimizer with the config's clipping and a learning rate, a number or a schedule."""
    arguments = {**_clip_arguments(config.clip), **keras_arguments(config), "learning_rate": rate}
    make = getattr(keras.optimizers, _class_of(config))
    with options_checked(config):
        return make(**arguments)


def config_of(optimizer: Any) -> OptimizerConfig:
    """Returns the config of an optimizer of Keras; see `content_of`."""
    typed: OptimizerConfig = build(OptimizerConfig, arranged("optimizer", content_of(optimizer)), "optimizer")
    return typed


def content_of(optimizer: Any) -> dict[str, Any]:
    """Returns the keys of the group `optimizer` for an optimizer of Keras 3; raises ConfigError if it has none."""
    name = type(optimizer).__name__
    if name not in CLASSES or not type(optimizer).__module__.startswith("keras."):
        problem = "is no optimizer of Keras that a run has"
        raise invalid("optimizer.class_name", name, problem=problem, fix=f"compile with one of {listed(CLASSES)}")
    # Keras keeps what its method excludes, and no config has it.
    excluded = [getattr(optimizer, f"_exclude_from_weight_decay{end}", None) for end in ("", "_pattern")]
    if any(excluded):
        fix = "compile without it, and set optimizer.groups=[{match: biases_and_norms, decay: false}]"
        raise invalid("optimizer.class_name", name, problem="has exclude_from_weight_decay", fix=fix)
    options = optimizer.get_config()
    content: dict[str, Any] = {"name": "keras", "class_name": name}
    for argument in ("use_ema", "loss_scale_factor", "gradient_accumulation_steps"):
        if options[argument]:
            fix = f"compile without it, and {OWN_FORMS[argument]}"
            raise invalid(f"optimizer.{argument}", options[argument], problem="is an option of the run", fix=fix)
    for key, argument in _CLIP_ARGUMENTS.items():
        if options[argument] is not None:
            content["clip"] = {key: options[argument]}
    rate = options.pop("learning_rate")
    content["learning_rate"] = rate
    if isinstance(rate, Mapping):
        own = rate["config"]
        schedule = _SCHEDULES.get(rate["class_name"], {})
        if not schedule or own.get("warmup_steps"):
            problem = "is no schedule of Keras that a run has, or has a warm-up"
            fix = "compile with a number, and set optimizer.schedule"
            raise invalid("optimizer.learning_rate", rate["class_name"], problem=problem, fix=fix)
        content["learning_rate"] = own["initial_learning_rate"]
        content["schedule"] = {key: own.get(argument, argument) for key, argument in schedule.items()}
    for key, value in options.items():
        if key not in (*OWN_FORMS, "name") and value is not None:
            content[key] = value
    return content


def _class_of(config: OptimizerConfig) -> str:
    return config.class_name or OPTIMIZERS[config.name].keras_class


def keras_arguments(config: OptimizerConfig) -> dict[str, Any]:
    """Returns the arguments of Keras's class that are not the same for every optimizer."""
    entry = OPTIMIZERS[config.name]
    if entry.is_keras_class:
        return dict(config.options)
    return {key: getattr(config, key) for key in entry.keys}


def keras_slots(
    config: OptimizerConfig, optimizer: Any, ranks: Mapping[str, int]
) -> list[tuple[Slot, dict[str, Any]]]:
    """Returns the state of a built optimizer of Keras, each slot with its variables by their owner's path.

    `ranks`: path -> number of dims, in the order in which the optimizer was built. Variables without state are left
    out.
    """
    found = []
    for name, slot in CLASSES[_class_of(config)].items():
        state = getattr(optimizer, slot.attribute, [])
        initial = slot.initial
        if isinstance(initial, str):
            initial = float(getattr(optimizer, initial))
        if hasattr(state, "dtype"):
            # Of the whole optimizer, of which parameter groups make several: the first variable tells them apart.
            owner = next(iter(ranks))
            found.append((Slot(name, {}, initial, {owner: ()}, "float32"), {owner: state}))
            continue
        variables = {}
        dims = {}
        # Not strict: the list is empty if the optimizer keeps no such state.
        for (path, rank), variable in zip(ranks.items(), state, strict=False):
            dims_of_slot = list(range(rank))
            if slot.without is not None:
                # Keras has a scalar without a meaning in place of a factored moment of a vector.
                if rank < _LEAST_FACTORED:
                    continue
                del dims_of_slot[-slot.without]
            if variable is None:
                continue
            variables[path] = variable
            dims[path] = tuple(dims_of_slot)
        if variables:
            found.append((Slot(name, dims, initial), variables))
    return found


def _clip_arguments(config: ClipConfig) -> dict[str, object]:
    arguments = {}
    for key, argument in _CLIP_ARGUMENTS.items():
        limit = getattr(config, key)
        # Keras rejects several kinds of clipping at once, so the others are left out.
        if limit is not None:
            arguments[argument] = limit
    return arguments
