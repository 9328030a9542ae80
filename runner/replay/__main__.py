"""The replay command: `python -m runner.replay run=<run id> step=<step>` computes a recorded step again.

It exits with 0 if the step is computed, 1 if it differs from the record although mesh, engine and config are the
recorded ones, and 2 if the config is invalid.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.replay.command")
