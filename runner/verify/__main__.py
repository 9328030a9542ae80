"""The verify command: `python -m runner.verify mesh=batch8` proves the mesh against one device."""

from __future__ import annotations

from runner.cli import entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.config.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    """Verifies."""
    from runner.verify.record import run

    run(config, composed)


def main() -> None:
    """Runs the command and exits with its code: 0 verified, 1 not, 2 the config was refused."""
    entry.main(command)


if __name__ == "__main__":
    main()
