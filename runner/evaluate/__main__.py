"""The evaluate command: `python -m runner.evaluate run=<run id>` evaluates a run's checkpoint on a split."""

from __future__ import annotations

from runner.cli import entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.config.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    """Evaluates."""
    from runner.evaluate.command import run

    run(config, composed)


def main() -> None:
    """Runs the command and exits with its code: 0 done, 1 failed, 2 the config was refused."""
    entry.main(command)


if __name__ == "__main__":
    main()
