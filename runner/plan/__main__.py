"""The plan command: `python -m runner.plan mesh=batch4_model2 layout=megatron`."""

import gc

from runner.cli import entry

if __name__ == "__main__":
    gc.disable()  # a plan makes much, drops little and ends: searching that for garbage would be a third of its time
    entry.main("runner.plan.main", after="runner.plan.end")
