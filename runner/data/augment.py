"""Augmentation: a source whose examples are changed by chance, as a function of (seed, epoch, row) alone.

So a resumed run, another mesh and another number of workers see the same bits. Evaluations see what has the same
specs and draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from runner.config.schema_augment import ON, STEPS, StepOptions
from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data.augment_steps import STEPS as STEP_CLASSES
from runner.data.augment_steps import Arrays, Partner, Specs, Step
from runner.data.base import RESERVED, Array, ArraySource, ArraySpec, DataSource, ExampleSource, Rows, column, stacked
from runner.data.checks_augment import options
from runner.data.cut import Selection
from runner.errors import ConfigError, DataError, describe, invalid
from runner.host import import_path

OwnStep = Callable[..., Mapping[str, Array]]  # (arrays, rng, **options)
_WORD = (1 << 64) - 1  # Philox takes keys of 64 bits


@dataclass(frozen=True)
class Own(Step[StepOptions]):
    """A step of a user's own: `(arrays, rng, **options) -> arrays` of one example.

    Attributes:
      call: the callable.
      given: its options.
      everywhere: evaluations take it too.
      result: specs of what it gives.
    """

    call: OwnStep = dict
    given: Mapping[str, object] = field(default_factory=dict)
    everywhere: bool = False
    result: Specs = field(default_factory=dict)

    def check(self) -> None:
        """It may be for any arrays."""

    def after(self) -> dict[str, ArraySpec]:
        """Returns the specs of what it gave for one example."""
        return dict(self.result)

    def keeps(self, name: str) -> bool:
        """It may change any array."""
        del name
        return False

    def train(self, arrays: Arrays, rng: np.random.Generator, partner: Partner) -> Arrays:
        """Calls it."""
        del partner
        made = self.call(dict(arrays), rng, **self.given)
        if not isinstance(made, Mapping):
            raise TypeError(f"it returned {type(made).__name__}, and must return arrays by name")
        return {name: np.asarray(array) for name, array in made.items()}


@dataclass(frozen=True, eq=False)
class Augmented:
    """A source whose examples go through steps.

    Attributes:
      source: what is changed.
      steps: in order.
      seed: the run's.
      training: whether they draw; False for what is evaluated.
      specs: of what the last step gives.
    """

    source: DataSource
    steps: Sequence[Step[StepOptions]]
    seed: int
    training: bool
    specs: Specs

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.source.size

    @cached_property
    def holds_gil(self) -> bool:
        """Whether a step, or what makes the examples, is Python code of a user's."""
        return any(isinstance(step, Own) for step in self.steps) or any(
            isinstance(part, ExampleSource) and part.holds_gil for part in sources(self.source)
        )

    @cached_property
    def _originals(self) -> bool:
        """Whether the steps give images one size themselves, so that they take them as they are in their files."""
        return any(step.options.sizes for step in self.steps)

    def read(self, rows: Rows, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of some examples, each (len(rows), *shape), as an epoch draws them."""
        return stacked(self.specs, rows, lambda row: self.example(row, epoch))

    def column(self, name: str) -> Array | None:
        """Returns one array whole, where no step changes it and the source has it so."""
        return column(self.source, name) if all(step.keeps(name) for step in self.steps) else None

    def example(self, row: int, epoch: int = 0) -> dict[str, Array]:
        """Returns the arrays of one example, as an epoch draws them."""
        arrays = self._made(row, epoch, len(self.steps))
        for name, spec in self.specs.items():
            array = arrays.get(name)
            if array is None or array.shape != spec.shape or array.dtype != spec.dtype:
                found = "missing" if array is None else f"{array.dtype} {array.shape}"
                raise DataError(
                    f"{self.example_name(row)}: array {name} is {found} behind dataset.augment, and was {spec.dtype} "
                    f"{spec.shape} for the first example; give every example the same shape and dtype"
                )
        return {name: arrays[name] for name in self.specs}

    def example_name(self, row: int) -> str:
        """Returns what a message calls an example."""
        return name_of(self.source, row)

    def _made(self, row: int, epoch: int, steps: int) -> Arrays:
        """Returns an example behind the first steps."""
        arrays = _example(self.source, row, original=self._originals)
        rng = generator(self.seed, epoch if self.training else 0, row)
        for place, step in enumerate(self.steps[:steps]):
            try:
                if self.training or (isinstance(step, Own) and step.everywhere):
                    arrays = step.train(arrays, rng, lambda other, to=place: self._made(other, epoch, to))  # type: ignore[misc]
                else:
                    arrays = step.evaluate(arrays)
            except DataError:
                raise
            except Exception as error:  # whatever a user's code raises
                raise DataError(f"{self.example_name(row)}: {step.key} failed ({describe(error)})") from error
        return arrays


class _Key(ISeedSequence):
    """A Philox key as it is: `Philox(key=...)` asks the system for entropy first, and then makes no use of it."""

    def __init__(self, *words: int) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: type = np.uint64) -> Array:  # type: ignore[override]
        """Returns the key."""
        del n_words
        return np.array(self._words, dtype)


def generator(seed: int, epoch: int, row: int) -> np.random.Generator:
    """Returns the random numbers of one example in one epoch, which are no other one's."""
    return np.random.Generator(np.random.Philox(_Key(seed & _WORD, (epoch << 32 | row) & _WORD)))  # type: ignore[arg-type]


def augmented(source: DataSource, config: DatasetConfig, seed: int, *, train: bool) -> DataSource:
    """Returns a source as the config's steps change it; the source itself where there are none.

    Args:
      source: a split.
      config: of which `augment` is the steps.
      seed: the run's.
      train: whether the steps draw; else it is what evaluations see.

    Raises:
      ConfigError: a step does not fit the arrays.
      DataError: a step of a user's own fails for the first example.
    """
    if not config.augment:
        return source
    steps: list[Step[StepOptions]] = []
    specs: Specs = source.specs
    for place, step in enumerate(config.augment):
        key = f"dataset.augment[{place}]"
        if step.target:
            made: Step[StepOptions] = _own(key, step, Augmented(source, tuple(steps), seed, train, specs))
        else:
            made = STEP_CLASSES[step.name](options(step), key, specs, source.size)
        made.check()
        steps.append(made)
        specs = made.after()
    return Augmented(source, tuple(steps), seed, train, specs)


def sizing(config: DatasetConfig) -> list[int] | None:
    """Returns the size that the first step gives which takes images of any size; None where there is none."""
    for step in config.augment:
        if step.name and STEPS[step.name].sizes:
            height, width = step.options["size"]
            return [int(height), int(width)]
    return None


def _own(key: str, step: AugmentConfig, before: Augmented) -> Own:
    """Returns a user's step; what it gives is found by calling it for the first example."""
    everywhere = step.options.get(ON) == "all"
    given = {name: value for name, value in step.options.items() if name != ON}
    call: OwnStep = import_path.load(step.target, f"{key}._target_")
    own = Own(StepOptions(), key, before.specs, before.size, call, given, everywhere)
    probe = Augmented(before.source, (*before.steps, own), before.seed, True, before.specs)
    arrays = probe._made(0, 0, len(probe.steps))
    result = {}
    for name, array in arrays.items():
        if name in RESERVED or array.dtype.kind not in "biuf":
            raise invalid(
                f"{key}._target_",
                step.target,
                problem=f"numbers, not called {' or '.join(RESERVED)}; it gives {name!r} of {array.dtype}",
                fix="leave that array out",
            )
        spec = before.specs.get(name)
        same = spec is not None and (spec.shape, spec.dtype) == (array.shape, str(array.dtype))
        if spec is not None and same:
            result[name] = spec
        else:
            dims = spec.dims if spec is not None and len(spec.dims) == array.ndim else ()
            result[name] = ArraySpec(tuple(array.shape), str(array.dtype), dims)
    if result != before.specs and not everywhere:
        raise invalid(
            f"{key}._target_",
            step.target,
            problem="what changes shapes, dtypes or names is for evaluations too, and this one is for training alone",
            fix=f"add {ON}: all to the step",
        )
    return replace(own, result=result)


def make(source: Augmented, epoch: int, rows: Rows, made: Mapping[str, Array]) -> None:
    """Writes examples into arrays (len(rows), *shape) by name, in whichever thread or process this runs.

    Raises:
      DataError: one can't be made; names it.
    """
    for place, row in enumerate(rows):
        try:
            arrays = source.example(int(row), epoch)
        except (ConfigError, DataError):
            raise
        except Exception as error:  # whatever a user's code raises
            raise DataError(f"{name_of(source, int(row))} can't be made ({describe(error)})") from error
        for name, array in arrays.items():
            made[name][place] = array


def sources(source: DataSource) -> list[DataSource]:
    """Returns the sources that a selection is of, or the source alone."""
    return [piece for piece, _ in source.pieces] if isinstance(source, Selection) else [source]


def name_of(source: DataSource, row: int) -> str:
    """Returns what a message calls an example, as its file's name."""
    if isinstance(source, Selection):
        return name_of(*source.locate(row))
    return source.example_name(row) if isinstance(source, ExampleSource) else f"example {row:,}"


def _example(source: DataSource, row: int, *, original: bool) -> Arrays:
    if isinstance(source, Selection):
        return _example(*source.locate(row), original=original)
    if isinstance(source, ArraySource):
        return {name: array[row] for name, array in source.arrays.items()}
    made = getattr(source, "example", None)  # isinstance with ExampleSource takes 40 us, a tenth of an image's time
    if made is not None:
        arrays: Arrays = (getattr(source, "original", made) if original else made)(row)
        return arrays
    return {name: array[0] for name, array in source.read(np.array([row])).items()}
