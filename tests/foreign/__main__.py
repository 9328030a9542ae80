"""The tables: `python -m tests.foreign [names]`; see `tests.foreign.judges`."""

import sys

from tests.foreign import judges

if __name__ == "__main__":
    sys.exit(judges.main(sys.argv[1:]))
