"""The supervisor: `python -m runner.supervise -- torchrun ... -m runner resume=auto name=exp1`."""

from runner.cli import entry


def main() -> None:
    """Runs the command and exits with its code."""
    entry.main_without_config("runner.cli.supervise")


if __name__ == "__main__":
    main()
