# ruff: noqa: D102 - a source overrides what DataSource documents
"""Augmentation: random changes of examples, drawn by (seed, epoch, row) only.

So a resumed run, another mesh and another number of workers get identical bits. Evaluations get the same specs
without randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from runner.config import import_path
from runner.config.schema_augment import STEPS, StepOptions
from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data.augment_steps import STEPS as STEP_CLASSES
from runner.data.augment_steps import Arrays, Specs, Step
from runner.data.base import Array, ChangedSource, DataSource, ExampleSource, Rows, stack_examples
from runner.data.checks import options
from runner.data.encode import checked_example
from runner.errors import DataError

# Called with (arrays, rng, **options).
CustomFunction = Callable[..., Mapping[str, Array]]
_ARGUMENTS = ("arrays", "rng")  # positional ones of a custom step
# Philox keys have two words of 64 bits.
_UINT64_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class CustomStep(Step[StepOptions]):
    """A user's own step: `(arrays, rng, **options) -> arrays` of one training example, of the same specs."""

    function: CustomFunction = dict
    keywords: Mapping[str, object] = field(default_factory=dict)

    def keeps(self, name: str) -> bool:
        del name
        return False

    def train(self, arrays: Arrays, rng: np.random.Generator) -> Arrays:
        result = self.function(dict(arrays), rng, **self.keywords)
        if not isinstance(result, Mapping):
            raise TypeError(f"it returned {type(result).__name__}, but must return a dict of arrays")
        return {name: np.asarray(array) for name, array in result.items()}


@dataclass(frozen=True, eq=False)
class Augmented(ChangedSource, ExampleSource):
    """A source whose examples pass through augmentation steps, which are random if `training`."""

    steps: Sequence[Step[StepOptions]]
    seed: int
    training: bool

    def read(self, rows: Rows, epoch: int = 0) -> dict[str, Array]:
        return stack_examples(self.specs, rows, lambda row: self.example(row, epoch))

    def column(self, name: str) -> Array | None:
        for step in self.steps:
            if not step.keeps(name):
                return None
        return self.source.column(name)

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        # The source need not resize the images first if a step does.
        if any(step.options.sets_size for step in self.steps):
            arrays = self.source.original(row)
        else:
            arrays = self.source.example(row)
        rng = example_rng(self.seed, epoch, row)
        for step in self.steps:
            try:
                if self.training:
                    arrays = step.train(arrays, rng)
                else:
                    arrays = step.evaluate(arrays)
            except DataError:
                raise
            # The user's code may raise errors of any type.
            except Exception as error:
                raise DataError(f"{self.example_name(row)}: {step.key} raised {import_path.raised(error)}") from error
        return checked_example(arrays, self.specs, f"{self.example_name(row)}, after dataset.augment")


def example_rng(seed: int, epoch: int, row: int) -> np.random.Generator:
    """Returns the random number generator of one example in one epoch, independent of all others."""
    # The epoch has the upper 32 bits and the row the lower ones, so no two examples have the same key.
    key = [seed & _UINT64_MASK, (epoch << 32 | row) & _UINT64_MASK]
    return np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))


def augmented(
    source: DataSource, config: DatasetConfig, seed: int, *, train: bool, masks: Mapping[str, int] | None = None
) -> DataSource:
    """Returns a source with the config's augmentation, random if `train`; the source itself if there is none.

    For `masks` see `runner.data.augment_steps.Step`.
    """
    if not config.augment:
        return source
    steps: list[Step[StepOptions]] = []
    specs: Specs = source.specs
    for index, step_config in enumerate(config.augment):
        key = f"dataset.augment[{index}]"
        step: Step[StepOptions]
        if step_config.target:
            step = _custom_step(key, step_config, specs)
        else:
            step = STEP_CLASSES[step_config.name](options(step_config), key, specs, masks or {})
            step.check()
        steps.append(step)
        specs = step.after()
    return Augmented(source, specs, tuple(steps), seed, train)


def sizing(config: DatasetConfig) -> list[int] | None:
    """Returns the size from the first step that resizes images of any size, or None."""
    for step in config.augment:
        if step.name and STEPS[step.name].sets_size:
            height, width = step.options["size"]
            return [int(height), int(width)]
    return None


def _custom_step(key: str, config: AugmentConfig, specs: Specs) -> CustomStep:
    function: CustomFunction = import_path.load(config.target, f"{key}._target_")
    passed = [*import_path.parameters(function)][: len(_ARGUMENTS)]
    import_path.check_options(key, config.target, function, config.options, passed, write="write {name}: ...")
    import_path.check_positional(f"{key}._target_", config.target, partial(function, **config.options), _ARGUMENTS)
    return CustomStep(StepOptions(), key, specs, {}, function, config.options)
