"""The plan command: `python -m runner.plan mesh=batch4_model2 layout=megatron`."""

import gc

from runner.cli import entry

if __name__ == "__main__":
    # A plan allocates much, frees little and ends soon: garbage collection would be a third of its time.
    gc.disable()
    entry.main("runner.plan.command")
