"""Classes of Keras's optimizers: their state, and our update rule where the formula is elementwise.

The engine `jax` runs a class of Keras 3 itself. DTensor can't run tf_keras's optimizers correctly (docs/bugs.md), so
there a class needs a rule of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner.arrays import Arrays, Tensor
from runner.config.schema import OptimizerConfig
from runner.errors import invalid
from runner.optim import elementwise
from runner.optim.adam import ADAM
from runner.optim.base import OptimizerEntry, Rule
from runner.optim.rmsprop import RMSPROP
from runner.optim.sgd import SGD

Options = Mapping[str, Any]
MakeRule = Callable[[Options, Arrays], Rule]
# An option's value, or the name of the option whose value it is.
Initial = float | str | None


@dataclass(frozen=True)
class KerasSlot:
    """One kind of state of a class.

    Attributes:
      attributes: names of the class's list of variables, one per trainable variable, in Keras 3 and tf_keras.
      without: dim that the state lacks, counted from the end; None: it has all. Variables with a single dim don't have
        a factored state; Keras has a scalar without a meaning in its place.
      initial: value at the start, or the option that has it. None: the variable's own initial value.
    """

    attributes: tuple[str, ...]
    without: int | None = None
    initial: Initial = 0.0


@dataclass(frozen=True)
class KerasClass:
    """What the runner knows of one class.

    Attributes:
      slots: name in paths of state -> the state. One whose list is empty, as SGD's without momentum, does not exist.
      rule: (options, functions of the arrays) -> our update rule with the same formula; None: there is none.
      why_no_rule: why there is none, as a full clause. Messages say it.
      rule_keys: options that the rule knows. The others must be at their defaults where the rule is used.
      from_step: attribute of a scalar variable that is a function of the step -> that function of (options, steps done
        before, functions of the arrays). It is computed and not stored.
    """

    slots: Mapping[str, KerasSlot]
    rule: MakeRule | None = None
    why_no_rule: str = ""
    rule_keys: tuple[str, ...] = ()
    from_step: Mapping[str, Callable[[Options, Tensor, Arrays], Tensor]] = field(default_factory=dict)


def _as_own(entry: OptimizerEntry) -> MakeRule:
    """Returns the rule of an optimizer that has keys of its own, made from the options of Keras's class."""

    def make(options: Options, xp: Arrays) -> Rule:
        values = {key: options[key] for key in entry.keys if key in options}
        return entry.make_rule(OptimizerConfig(**values), xp)

    return make


def _without_rule(slots: Mapping[str, KerasSlot], why: str) -> KerasClass:
    """Returns a class that only an engine with Keras 3 can run."""
    return KerasClass(slots, why_no_rule=why)


# State of several classes. tf_keras and Keras 3, and some of their classes, differ in the underscore.
_M = KerasSlot(("_momentums", "momentums"))
_V = KerasSlot(("_velocities",))
_ADAM = KerasClass(
    {"m": _M, "v": _V, "v_hat": KerasSlot(("_velocity_hats",))},
    _as_own(ADAM),
    rule_keys=(*ADAM.keys, "weight_decay"),
)

CLASSES: Mapping[str, KerasClass] = {
    "Adadelta": KerasClass(
        {
            "accumulated_grad": KerasSlot(("_accumulated_grads",)),
            "accumulated_delta_var": KerasSlot(("_accumulated_delta_vars",)),
        },
        elementwise.adadelta,
        rule_keys=("rho", "epsilon", "weight_decay"),
    ),
    "Adafactor": _without_rule(
        {"r": KerasSlot(("_r",), without=1), "c": KerasSlot(("_c",), without=2), "v": KerasSlot(("_v",))},
        "its update uses means over a whole variable",
    ),
    "Adagrad": KerasClass(
        {"accumulator": KerasSlot(("_accumulators",), initial="initial_accumulator_value")},
        elementwise.adagrad,
        rule_keys=("initial_accumulator_value", "epsilon", "weight_decay"),
    ),
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "Adamax": KerasClass(
        {"m": KerasSlot(("_m",)), "u": KerasSlot(("_u",))},
        elementwise.adamax,
        rule_keys=("beta_1", "beta_2", "epsilon", "weight_decay"),
    ),
    "Ftrl": KerasClass(
        {
            "accumulator": KerasSlot(("_accumulators",), initial="initial_accumulator_value"),
            "linear": KerasSlot(("_linears",)),
        },
        elementwise.ftrl,
        rule_keys=(
            "learning_rate_power",
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "l2_shrinkage_regularization_strength",
            "beta",
            "weight_decay",
        ),
    ),
    "Lamb": _without_rule({"m": _M, "v": _V}, "its update uses norms of a whole variable"),
    "Lion": KerasClass({"m": _M}, elementwise.lion, rule_keys=("beta_1", "beta_2", "weight_decay")),
    "Muon": _without_rule(
        {"m": _M, "v": KerasSlot(("adam_velocities",))}, "its update uses matrix products of a whole variable"
    ),
    "Nadam": KerasClass(
        {"m": _M, "v": _V},
        elementwise.nadam,
        rule_keys=("beta_1", "beta_2", "epsilon", "weight_decay"),
        from_step={"_u_product": elementwise.nadam_product},
    ),
    "RMSprop": KerasClass(
        {
            "velocity": _V,
            "average": KerasSlot(("_average_gradients",)),
            "momentum": KerasSlot(("_momentums",)),
        },
        _as_own(RMSPROP),
        rule_keys=(*RMSPROP.keys, "weight_decay"),
    ),
    "SGD": KerasClass({"momentum": KerasSlot(("momentums",))}, _as_own(SGD), rule_keys=(*SGD.keys, "weight_decay")),
    "ScheduleFreeAdamW": _without_rule(
        {"z": KerasSlot(("_momentums",), initial=None), "v": _V},
        # `Rule.initial` has numbers only, and tf_keras has no such class to compare a rule with.
        "its state begins as a copy of the weights, which no update rule of this runner has",
    ),
}


def initial_value(slot: KerasSlot, options: Options) -> float | None:
    """Returns a slot's value at the start; None: the variable's own."""
    if isinstance(slot.initial, str):
        return float(options[slot.initial])
    return slot.initial


def _make_rule(config: OptimizerConfig, xp: Arrays) -> Rule:
    rule_of_class = CLASSES[config.class_name or ""].rule
    assert rule_of_class is not None, "checked by check_rule"
    rule = rule_of_class(config.options, xp)
    weight_decay = config.options["weight_decay"]
    # Keras decays the weights before the update, and of all classes alike, so it is not part of a formula.
    if not weight_decay:
        return rule
    return replace(rule, update=elementwise.with_weight_decay(rule.update, weight_decay))


def check_rule(config: OptimizerConfig, defaults: Options) -> None:
    """Checks that a class has an update rule that knows all its options.

    Args:
      config: the config of the optimizer `keras`.
      defaults: of the class's options.

    Raises:
      ConfigError: it has not.
    """
    known = CLASSES[config.class_name or ""]
    if known.rule is None:
        raise invalid(
            "optimizer.class_name",
            config.class_name,
            problem=f"needs an engine that runs Keras 3: {known.why_no_rule}",
            fix="set engine=jax",
        )
    for key, value in config.options.items():
        if key not in known.rule_keys and value != defaults[key]:
            problem = f"needs an engine that runs Keras 3: our update rule of {config.class_name} has no {key}"
            fix = f"set engine=jax, or remove optimizer.{key}"
            raise invalid(f"optimizer.{key}", value, problem=problem, fix=fix)


KERAS = OptimizerEntry(
    keys=(),
    make_rule=_make_rule,
    keras_class="",
    keras_slots={},
    is_keras_class=True,
)
