"""A side of a verification that computes nothing and ends in the way that $FAKE says."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    kind = os.environ["FAKE"]
    print("said something")
    if kind == "sleep":
        Path(sys.argv[2], "pid").write_text(str(os.getpid()))
        time.sleep(60)
    if kind == "killed":
        os.kill(os.getpid(), 9)
    if kind == "crash":
        sys.exit(7)
    Path(sys.argv[2], f"{sys.argv[1]}.json").write_text(json.dumps({"kind": kind, "text": "why", "noise": 1.0}))
