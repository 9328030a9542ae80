"""Results of every function of a library's namespace: `python -m tests.task.worker LIBRARY OUT.npz`."""

import importlib
import sys

import numpy as np

from runner import arrays
from tests.task.functions import CALLS

if __name__ == "__main__":
    library, out = sys.argv[1:]
    ops = arrays.of(importlib.import_module(library))
    np.savez(out, **{name: np.asarray(call(ops)) for name, call in CALLS.items()})
