"""The train command: `python -m runner mesh=batch8 model=mlp`."""

from runner.cli import entry


def main() -> None:
    """Runs the command and exits with its code."""
    entry.main("runner.cli.train")


if __name__ == "__main__":
    main()
