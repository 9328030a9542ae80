"""The train command: `python -m runner mesh=batch8 model=mlp`."""

from functools import partial

from runner.cli import entry

main = partial(entry.call, "runner.cli.app", "run_command", "runner.cli.train")

if __name__ == "__main__":
    main()
