"""A plan that counts nothing: writes plan.json into its folder, or fails as `model=` says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    words = sys.argv[1:]
    if "model=broken" in words:
        print("error: the model is broken", file=sys.stderr)
        sys.exit(1)
    folder = Path(words[-1].partition("=")[2].strip("'"))
    folder.mkdir()
    program = {"flops": 30e9, "accessed_bytes": 5e9, "argument_bytes": len(words), "temporary_bytes": 0}
    content = {"forecast": None, "program": program, "launcher": os.environ["RUNNER_LAUNCHER"]}
    (folder / "plan.json").write_text(json.dumps(content))
