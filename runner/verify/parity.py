"""Two engines on one mesh: what each is asked to compute, so that they can be held against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.config.schema import AgainstConfig, RunConfig
from runner.data.base import Array

_VARIANCE = "/moving_variance"


@dataclass(frozen=True)
class Parity:
    """What is compared in place of a mesh and one device.

    Attributes:
      first: engine whose single device gives initial weights and tolerances.
      second: engine that is held against it.
    """

    first: str
    second: str

    @property
    def sides(self) -> tuple[str, str]:
        """Returns the two in words."""
        return f"engine {self.first}", f"engine {self.second}"

    def compared(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Returns what the two can agree in.

        Of images, tf_keras's batch normalization keeps the variance times n / (n - 1), Keras 3's keeps it as it is.
        """
        if "jax" not in (self.first, self.second):
            return dict(arrays)
        return {key: value for key, value in arrays.items() if not key.endswith(_VARIANCE)}

    def basis(self) -> str:
        """Says under which conditions the two are compared."""
        return (
            f"compared: {self.first} and {self.second} on the same mesh and layout, both from the initial weights "
            f"that {self.first} draws, with the same batches and dropout masks; {_VARIANCE[1:]} is not compared where "
            "tf_keras and Keras 3 define it otherwise"
        )


def parity(config: RunConfig) -> Parity | None:
    """Returns the parity that a config asks for, None where it is compared with one device."""
    if config.against.engine is None:
        return None
    return Parity(config.engine.name, config.against.engine)


def second(config: RunConfig) -> RunConfig:
    """Returns the config of the engine that is held against the first."""
    name = config.against.engine
    assert name is not None
    return replace(config, engine=replace(config.engine, name=name), against=AgainstConfig())
