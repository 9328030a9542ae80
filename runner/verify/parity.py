"""Parity: the comparison of two engines on one mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.config.schema import AgainstConfig, ClusterConfig, RunConfig
from runner.data.base import Array
from runner.engine.registry import keras_package
from runner.processes import place

# End of the path of batch normalization's variance, which Keras 3 and tf_keras define differently.
_VARIANCE = "/moving_variance"


@dataclass(frozen=True)
class Parity:
    """The two sides that are compared in place of a mesh and one device.

    Attributes:
      first: engine whose single device gives initial weights and tolerances.
      second: engine that is compared with it.
      processes: in how many processes the first engine computes; the second one has one.
    """

    first: str
    second: str
    processes: int = 1

    @property
    def names(self) -> tuple[str, str]:
        """The engines, with their numbers of processes where these differ."""
        if self.processes == 1:
            return self.first, self.second
        return f"{self.first} in {self.processes} processes", f"{self.second} in 1 process"

    @property
    def sides(self) -> tuple[str, str]:
        """The two sides for an error message."""
        first, second = self.names
        return f"engine {first}", f"engine {second}"

    def comparable(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the arrays in which the two engines can agree.

        Of images, tf_keras's batch normalization stores the variance times n / (n - 1); Keras 3's stores it as it is.
        """
        if keras_package(self.first) == keras_package(self.second):
            return dict(arrays)
        return {key: value for key, value in arrays.items() if not key.endswith(_VARIANCE)}

    def basis(self) -> str:
        """Returns the conditions under which the two are compared, in words."""
        first, second = self.names
        return (
            f"compared: {first} and {second} on the same mesh and layout, both from the initial weights that "
            f"{self.first} draws, with the same batches and dropout masks; {_VARIANCE[1:]} is not compared if "
            "tf_keras and Keras 3 define it differently"
        )


def parity(config: RunConfig) -> Parity | None:
    """Returns the parity that a config asks for; None: the mesh is compared with one device."""
    other = config.against.engine
    if other is None:
        return None
    return Parity(config.engine.name, other, place.count(config.cluster))


def second_config(config: RunConfig) -> RunConfig:
    """Returns the config of the side that is compared with the first engine."""
    name = config.against.engine
    assert name is not None
    # Without `against`: this side is an ordinary run of the other engine. Only one engine has several processes.
    engine = replace(config.engine, name=name)
    return replace(config, engine=engine, cluster=ClusterConfig(), against=AgainstConfig())
