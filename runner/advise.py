"""The advise command: `python -m runner.advise devices=64 hardware=h100 engine=jax model=gpt` ranks candidates.

It exits with 0 if a candidate fits, 1 if none does, 2 if the config is invalid.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.plan.advise.command")
