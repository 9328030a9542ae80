"""The export command: `python -m runner.export run=<run id>` writes a run's model as a SavedModel."""

from __future__ import annotations

from runner.cli import entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.config.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    """Exports."""
    from runner.export.command import run

    run(config, composed)


def main() -> None:
    """Runs the command and exits with its code: 0 done, 1 failed or not equal to the run, 2 refused."""
    entry.main(command)


if __name__ == "__main__":
    main()
