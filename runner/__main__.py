"""The train command: `python -m runner mesh=batch8 model=mlp`."""

from __future__ import annotations

from runner.cli import entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from runner.config.schema import RunConfig


def command(config: RunConfig, composed: DictConfig) -> None:
    """Trains."""
    from runner.config.errors import refuse

    if config.run is not None:
        raise refuse(
            "run", config.run, allowed="it is for runner.evaluate and runner.export", mend="resume=... trains on"
        )
    from runner.run.train import run

    run(config, composed)


def main() -> None:
    """Runs the command and exits with its code."""
    entry.main(command)


if __name__ == "__main__":
    main()
