"""Compares the golden records with what the code computes: `python -m tests.golden [--record] [NAME ...]`.

`--record` writes them. A changed record is a line of CHANGELOG.md with its reason. Exit code 1 where one differs.
"""

import argparse
import json

from tests.golden.runs import GOLDEN, HERE, differences, measure, recorded


def main() -> int:
    """Measures the records that the command line names, else all."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a record; all of them if none is named")
    parser.add_argument("--record", action="store_true", help="write what is measured")
    chosen = parser.parse_args()
    differing = 0
    for golden in GOLDEN:
        if chosen.names and golden.name not in chosen.names:
            continue
        record = measure(golden)
        if chosen.record:
            (HERE / f"{golden.name}.json").write_text(json.dumps(record, indent=1) + "\n")
            print(f"{golden.name}: recorded", flush=True)
            continue
        lines = differences(recorded(golden), record)
        differing += bool(lines)
        print("\n".join([f"{golden.name}: {'differs' if lines else 'equal'}", *lines[:10]]), flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
