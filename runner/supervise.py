"""The supervisor: `python -m runner.supervise -- torchrun ... -m runner resume=auto name=exp1`."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main_without_config("runner.cli.supervise")
