"""Keras's own optimizers for a config: their state by name, and their errors. Keras itself checks their options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from runner.config.schema import ClipConfig, OptimizerConfig
from runner.engine.optim.rules import OPTIMIZERS, Slot
from runner.errors import ConfigError, shown

# Variables of fewer dims have no factored state.
_LEAST_FACTORED = 2

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
        assignments = {key: f"optimizer.{key}={shown(value)}" for key, value in config.options.items()}
        named = [key for key in assignments if re.search(rf"\b{re.escape(key)}\b", text)]
        blamed = ", ".join(assignments[key] for key in named[:1] or assignments)
        raise ConfigError(f"{blamed}: Keras rejects it: {text}; see keras.io/api/optimizers") from error


def stock_optimizer(config: OptimizerConfig, rate: object, keras: ModuleType) -> Any:
    """Returns Keras's own optimizer with the config's clipping and a learning rate, a number or a schedule."""
    arguments = {**_clip_arguments(config.clip), **keras_arguments(config), "learning_rate": rate}
    make = getattr(keras.optimizers, _class_of(config))
    with options_checked(config):
        return make(**arguments)


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
