"""A side of a verification that computes nothing, and ends as $FAKE says: one word, or one for each side."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    side, folder = sys.argv[1], Path(sys.argv[2])
    ways = dict(each.split(": ") for each in os.environ["FAKE"].split(", ") if ": " in each)
    kind = ways.get(side, os.environ["FAKE"])
    print("said something")
    if kind == "sleep":
        (folder / "pid").write_text(str(os.getpid()))
        time.sleep(60)
    if kind == "killed":
        os.kill(os.getpid(), 9)
    if kind == "crash":
        sys.exit(7)
    if kind == "invalid":
        while "sleep" in ways.values() and not (folder / "pid").exists():
            time.sleep(0.01)
    (folder / f"{side}.json").write_text(json.dumps({"kind": kind, "text": f"why {side}", "noise": 1.0}))
