"""Prints the comparison of rows: `python -m tests.parity [NAME ...]`."""

import os
import sys
import tempfile
from pathlib import Path

from tests import forks
from tests.parity import compare


def main() -> None:
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "XLA_FLAGS": forks.SLOW_CODE}
    forks.start_environment.update(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="parity-"))
    print(f"files: {folder}")
    for line in compare.table(sys.argv[1:], folder):
        print(line, flush=True)


if __name__ == "__main__":
    main()
