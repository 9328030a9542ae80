"""Verifies backbones of KerasHub: `python -m tests.backbones_of_hub [--mesh M] [--layout L ...] [names]`.

They have tiny sizes. Prints the line of each verdict, and exits with 1 if one is neither verified nor rejected.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tests import forks
from tests.backbones_of_hub.test_backbones_of_hub import asked, verify


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.backbones_of_hub")
    parser.add_argument("names", nargs="*", metavar="backbone")
    parser.add_argument("--mesh", default="batch4_model2")
    parser.add_argument("--layout", nargs="+", default=["auto"], metavar="word", help="option, and its keys")
    chosen = parser.parse_args()
    words = [f"mesh={chosen.mesh}", f"layout={chosen.layout[0]}", *chosen.layout[1:]]
    os.environ.setdefault("XLA_FLAGS", forks.SLOW_CODE)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.names or json.loads(asked(Path(folder), "names").stdout.splitlines()[-1]):
            built = asked(Path(folder), "arrays", name, folder)
            code, said = built.returncode, built.stderr.strip().splitlines()[-1:] or [""]
            if not code:
                done = verify(Path(folder), json.loads(built.stdout.splitlines()[-1]), words)
                code, said = done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1:]
            failed += code == 1 and bool(built.stdout)
            print(f"{name}: {said[0]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
