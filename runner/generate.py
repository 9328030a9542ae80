"""The generate command: `python -m runner.generate run=<run id> prompt=<text>` continues prompts with a run's model.

It exits with 0 if the text is written, 1 if that failed, 2 if the config is invalid.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.cli.generate")
