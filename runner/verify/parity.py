"""Two engines on one mesh: what each is asked to compute, so that they can be held against each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.config.schema import AgainstConfig, RunConfig


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

    def basis(self) -> str:
        """Says under which conditions the two are compared."""
        return (
            f"compared: {self.first} and {self.second} on the same mesh and layout, both from the initial weights "
            f"that {self.first} draws, with the same batches and dropout masks"
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
