"""The process of a verification that computes nothing, and ends as $FAKE says."""

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    kind = os.environ["FAKE"]
    print("said something")
    if kind == "killed":
        os.kill(os.getpid(), 9)
    if kind == "crash":
        sys.exit(7)
    (Path(sys.argv[1]) / "result-0.json").write_text(json.dumps({kind: None if kind == "verification" else "why"}))
