"""Where an engine can be broken: what it computes on the way, handed to a function that may change it.

`tests.campaign.mutations_jax` and `tests.campaign.mutations_dtensor` say where these places are in each engine.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from runner import arrays
from runner.arrays import Arrays
from runner.config.schema import OptimizerConfig, RunConfig
from runner.data.base import Array
from runner.engine.base import HostBatches
from runner.engine.optim import groups, norms, rules, schedules
from runner.task.classification import Classification

Tensor = Any  # of the engine's library
Slots = dict[str, Tensor]
_MISSING = object()


class Patches:
    """Replaces what modules and classes hold, and puts it back."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []

    def put(self, owner: Any, name: str, value: object) -> None:
        """Sets an attribute."""
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets an attribute to what a function makes of it."""
        self.put(owner, name, make(getattr(owner, name)))

    def everywhere(self, function: Any, value: object) -> None:
        """Puts something in the place of a function of the runner's in each of its modules that has imported it."""
        found = 0
        for module in [held for name, held in sys.modules.items() if name.split(".")[0] == "runner"]:
            for name, held in list(vars(module).items()):
                if held is function:
                    self.put(module, name, value)
                    found += 1
        assert found, f"no module has {function}"

    def undo(self) -> None:
        """Puts everything back."""
        for owner, name, value in reversed(self._before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._before.clear()


@dataclass(frozen=True)
class Moment:
    """One variable's update, as it is computed.

    Attributes:
      path: of the variable.
      g: its gradient.
      w: the weight before.
      slots: before.
      rate: learning rate.
      step: from 1.
    """

    path: str
    g: Tensor
    w: Tensor
    slots: Slots
    rate: Tensor
    step: Tensor


Updated = tuple[Tensor, Slots]
Rule = Callable[[Moment], Updated]
Gradients = list[Tensor]


class Hooks(ABC):
    """The places of one engine.

    Attributes:
      engine: its class.
      builder: the class that makes its model, whose third argument is the seed.
      update_method: class, and name of its method that updates all variables.
      config: of the run.
      paths: of the trainable variables, in the engine's order; known once an engine was built.
      module: of the engine's arrays.
      ops: functions of them.
    """

    engine: type
    builder: type
    update_method: tuple[type, str]

    def __init__(self, config: RunConfig, module: ModuleType) -> None:
        self.config, self.module, self.ops = config, module, arrays.of(module)
        self.patches = Patches()
        self.paths: tuple[str, ...] = ()
        self._left: Iterator[str] = iter(())
        self._follow_paths()

    @property
    def microbatches(self) -> int:
        return self.config.trainer.accumulate_steps

    @property
    def parts(self) -> int:
        """How many devices a batch is split over."""
        return self.config.mesh.axes["batch"]

    def _follow_paths(self) -> None:
        """Notes `paths` when an engine is built, and begins `_left` again with each update of all variables."""

        def made(sound: Callable[..., None]) -> Callable[..., None]:
            def make_state(engine: Any) -> None:
                sound(engine)
                self.paths = tuple(engine.trainable)

            return make_state

        def updated(sound: Callable[..., Any]) -> Callable[..., Any]:
            def update(*given: Any) -> Any:
                self._left = iter(self.paths)
                return sound(*given)

            return update

        self.patches.wrap(self.engine, "_make_state", made)
        self.patches.wrap(*self.update_method, updated)

    @abstractmethod
    def gradients(self, change: Callable[[Gradients, Tensor], Gradients]) -> None:
        """Hands over the gradients of a micro-batch, and how many micro-batches were done before."""

    @abstractmethod
    def sums(self, change: Callable[[Gradients, Gradients, Tensor], Gradients]) -> None:
        """Hands over a micro-batch's gradients, the sums so far, and its number in the step, float32."""

    @abstractmethod
    def constraints(self, change: Callable[[str, Tensor, Callable[[Tensor], Tensor]], Tensor]) -> None:
        """Replaces what holds a weight to its constraint after an update: (path, weight, sound) -> weight."""

    def batches(self, change: Callable[[HostBatches], HostBatches]) -> None:
        """Hands over the batches of a call, (K, B, ...)."""

        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            return lambda engine, batches, microbatches: sound(engine, change(batches), microbatches)

        self.patches.wrap(self.engine, "_placed", make)

    @abstractmethod
    def models(self, change: Callable[[Any], None]) -> None:
        """Hands over the model that is on the mesh, when it was built."""

    def first_steps(self, change: Callable[[int], int]) -> None:
        """Hands over how many steps were done before a call."""

        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            return lambda engine, batches, first, *given: sound(engine, batches, change(first), *given)

        self.patches.wrap(self.engine, "train_steps", make)

    def seeds(self, change: Callable[[int], int]) -> None:
        """Hands over the seed of the initial weights."""

        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            return lambda builder, config, data, seed, *given, **named: sound(
                builder, config, data, change(seed), *given, **named
            )

        self.patches.wrap(self.builder, "__init__", make)

    def layers(self, model: Any) -> list[Any]:
        """Returns all layers of a model, those inside of others too."""
        found = model._flatten_layers(include_self=False)
        return list(dict.fromkeys(found))

    def calls(self, kind: str, make: Callable[[Any, Callable[..., Tensor]], Callable[..., Tensor]]) -> None:
        """Replaces the `call` of layers of a class or its subclasses: (layer, its own call) -> another one."""

        def change(model: Any) -> None:
            chosen = [each for each in self.layers(model) if kind in {one.__name__ for one in type(each).__mro__}]
            assert chosen, f"no {kind}"
            for layer in chosen:
                object.__setattr__(layer, "call", make(layer, layer.call))

        self.models(change)

    def sets(self, kind: str, name: str, value: Callable[[Any], Any], of: str = "") -> None:
        """Sets an attribute of layers of a class, or with `of` of what they hold: value of now -> another one."""

        def change(model: Any) -> None:
            found = [each for each in self.layers(model) if kind in {one.__name__ for one in type(each).__mro__}]
            found = [getattr(each, of, None) for each in found] if of else found
            chosen = [each for each in found if getattr(each, name, None) is not None]
            assert chosen, f"no {kind} with {of} {name}"
            for each in chosen:
                object.__setattr__(each, name, value(getattr(each, name)))

        self.models(change)

    def updates(self, change: Callable[[Moment, Rule], Updated]) -> None:
        """Hands over each variable's update, and the sound rule."""

        def make(sound: Callable[..., rules.Rule]) -> Callable[..., rules.Rule]:
            def make_rule(config: OptimizerConfig, ops: ModuleType) -> rules.Rule:
                rule = sound(config, ops)

                def kept(moment: Moment) -> Updated:
                    return rule.update(moment.g, moment.w, moment.slots, moment.rate, moment.step)

                def update(g: Tensor, w: Tensor, slots: Slots, rate: Tensor, step: Tensor) -> Updated:
                    return change(Moment(next(self._left), g, w, slots, rate, step), kept)

                return replace(rule, update=update)

            return make_rule

        self.patches.everywhere(rules.make_rule, make(rules.make_rule))

    def rule_config(self, **values: object) -> None:
        """Makes the update rule of other numbers than the config's."""
        sound = rules.make_rule
        self.patches.everywhere(sound, lambda config, ops: sound(replace(config, **values), ops))

    def rates(self, change: Callable[..., Tensor]) -> None:
        """Replaces the schedule: (sound, config, step, total steps, ops) -> rate."""
        sound = schedules.learning_rate
        self.patches.everywhere(sound, lambda config, step, total, *ops: change(sound, config, step, total, *ops))

    def clips(self, change: Callable[..., Gradients]) -> None:
        """Replaces the clipping: (sound, config, gradients, ops) -> gradients."""
        sound = norms.clip
        self.patches.everywhere(sound, lambda config, gradients, ops: change(sound, config, gradients, ops))

    def averages(self, change: Callable[..., Tensor]) -> None:
        """Replaces the moving average: (sound, decay, old, weight, step, ops) -> new."""
        sound = rules.average
        self.patches.everywhere(sound, lambda *given: change(sound, *given))

    def losses(self, change: Callable[..., Tensor]) -> None:
        """Replaces the loss of single examples: (sound, task, ops, outputs, batch) -> (B,)."""

        def make(sound: Callable[..., Tensor]) -> Callable[..., Tensor]:
            return lambda task, *given: change(sound, task, *given)

        self.patches.wrap(Classification, "loss", make)

    def settings(self, change: Callable[[str, groups.Settings], groups.Settings]) -> None:
        """Hands over what the parameter groups say of each variable."""
        sound = groups.settings
        self.patches.everywhere(
            sound, lambda config, paths: {path: change(path, own) for path, own in sound(config, paths).items()}
        )

    def inputs(self, change: Callable[[Arrays, Any], Any]) -> None:
        """Hands over what the model is called with."""

        def make(sound: Callable[..., Any]) -> Callable[..., Any]:
            return lambda task, ops, batch: change(ops, sound(task, ops, batch))

        self.patches.wrap(Classification, "inputs", make)


def first_half(shape: Sequence[int]) -> Array:
    """Returns ones for the first half of the entries of an array, and zeros."""
    half = np.ones(int(np.prod(shape)), np.float32)
    half[half.size // 2 :] = 0.0
    return half.reshape(shape)


Way = Callable[[Hooks, str], None]
