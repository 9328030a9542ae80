"""The advise command: `python -m runner.advise devices=64 hardware=h100 engine=jax model=gpt` ranks candidates."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.plan.advise.command")
