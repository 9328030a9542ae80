"""Classes of Keras's optimizers: their state by name, and their errors. Keras itself checks their options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from runner.config.schema import OptimizerConfig
from runner.errors import ConfigError, shown


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
