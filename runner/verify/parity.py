"""Two engines on one mesh, or one in several processes and in one: what each computes, held against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.config.schema import AgainstConfig, ClusterConfig, RunConfig
from runner.data.base import Array
from runner.engine.registry import keras_package
from runner.processes import place

_VARIANCE = "/moving_variance"


@dataclass(frozen=True)
class Parity:
    """What is compared in place of a mesh and one device.

    Attributes:
      first: engine whose single device gives initial weights and tolerances.
      second: engine that is held against it.
      processes: in how many each computes.
    """

    first: str
    second: str
    processes: tuple[int, int] = (1, 1)

    @property
    def names(self) -> tuple[str, str]:
        """Returns the two in a few words."""
        if self.processes[0] == self.processes[1]:
            return self.first, self.second
        numbers = [f"{count} process{'es' if count > 1 else ''}" for count in self.processes]
        return f"{self.first} in {numbers[0]}", f"{self.second} in {numbers[1]}"

    @property
    def sides(self) -> tuple[str, str]:
        """Returns the two in words."""
        return f"engine {self.names[0]}", f"engine {self.names[1]}"

    def compared(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Returns what the two can agree in.

        Of images, tf_keras's batch normalization keeps the variance times n / (n - 1), Keras 3's keeps it as it is.
        """
        if keras_package(self.first) == keras_package(self.second):
            return dict(arrays)
        return {key: value for key, value in arrays.items() if not key.endswith(_VARIANCE)}

    def basis(self) -> str:
        """Says under which conditions the two are compared."""
        of = f"; {_VARIANCE[1:]} is not compared where tf_keras and Keras 3 define it otherwise"
        return (
            f"compared: {self.names[0]} and {self.names[1]} on the same mesh and layout, both from the initial "
            f"weights that {self.first} draws, with the same batches and dropout masks"
            f"{'' if self.first == self.second else of}"
        )


def parity(config: RunConfig) -> Parity | None:
    """Returns the parity that a config asks for, None where it is compared with one device."""
    against = config.against
    count = place.count(config.cluster)
    if against.engine is None and against.processes is None:
        return None
    other = count if against.processes is None else against.processes
    return Parity(config.engine.name, against.engine or config.engine.name, (count, other))


def second(config: RunConfig) -> RunConfig:
    """Returns the config of the engine that is held against the first."""
    name = config.against.engine or config.engine.name
    cluster = config.cluster if config.against.processes is None else ClusterConfig()
    return replace(config, engine=replace(config.engine, name=name), cluster=cluster, against=AgainstConfig())
