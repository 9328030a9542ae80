"""Verifies a custom step on a sound engine and on broken ones, in a process of its own, and prints the verdicts."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from runner.config.schema import VerifyConfig
from runner.verify.on_mesh import train
from runner.verify.request import Request
from runner.verify.worker import computed
from tests.campaign.mutations_worker import suspects
from tests.engine import own_step_worker

Step = Callable[..., Any]


def changed(change: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]) -> Callable[[Step], Step]:
    """A mutation of what a step returns: it gets the old state, the new one and the sums."""

    def mutate(sound: Step) -> Step:
        def step(self: Any, state: Any, kept: Any, *others: Any) -> Any:
            new_state, sums, regularization = sound(self, state, kept, *others)
            change(state, new_state, sums)
            return new_state, sums, regularization

        return step

    return mutate


def stay(prefix: str) -> Callable[[Any, Any, Any], None]:
    """Variables stay as they were."""
    return lambda old, new, _: new.update({path: old[path] for path in new if path.startswith(prefix)})


def shorter(old: dict[str, Any], new: dict[str, Any], _: dict[str, Any]) -> None:
    """A weight's change is a tenth too short."""
    path = "net/d1/kernel"
    new[path] = old[path] + 0.9 * (new[path] - old[path])


def larger(_: dict[str, Any], __: dict[str, Any], sums: dict[str, Any]) -> None:
    """The loss is 1% too large."""
    sums["loss"] = 1.01 * sums["loss"]


def main() -> None:
    """Prints the verdict on each engine, and the variable that it names."""
    config = own_step_worker.config_with_devices()
    config = replace(config, verify=VerifyConfig(steps=own_step_worker.STEPS))

    from runner.engine.jax.own_step.engine import Functions, OwnStep

    request = Request(config, own_step_worker.spec(config), own_step_worker.STEPS, own_step_worker.batches())
    one_device = computed(request)

    def later(sound: Any) -> Any:
        return lambda self, purpose, number: sound(self, purpose, number + 1)

    mutations: dict[str, tuple[type, str, Callable[[Any], Any]]] = {
        "sound": (OwnStep, "step", lambda sound: sound),
        "average": (OwnStep, "step", changed(stay("slow/"))),
        "moment": (OwnStep, "step", changed(stay("optimizer/adam.velocities/net/d1/kernel"))),
        "shorter": (OwnStep, "step", changed(shorter)),
        "metric": (OwnStep, "step", changed(larger)),
        "key": (Functions, "_keys", later),
    }
    found = {}
    for name, (owner, attribute, mutate) in mutations.items():
        with mock.patch.object(owner, attribute, mutate(getattr(owner, attribute))):
            verification = one_device.verification(train(request, one_device.arrays))
        found[name] = {"verdict": verification.verdict, "failed": suspects(verification)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
