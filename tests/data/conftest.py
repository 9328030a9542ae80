from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEAD_PROXY = "http://127.0.0.1:9"

LOAD = """
import json, sys, time
from runner.data.loading import load
from runner.config.schema import DatasetConfig
start = time.monotonic()
try:
    dataset = load(DatasetConfig(**json.loads(sys.argv[1])))
    print(dataset.digest, dataset.train.size, dataset.test.size)
except Exception as error:
    print(type(error).__name__, error)
    raise SystemExit(3)
finally:
    print(sorted({"tensorflow", "tensorflow_datasets"} & set(sys.modules)), file=sys.stderr)
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a Python process that can import the package."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )


def offline() -> dict[str, str]:
    """Environment in which neither TFDS, pip nor apt reaches anything."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_PROXY", "all_proxy")
    proxies = dict.fromkeys(names, DEAD_PROXY)
    no_index = {"PIP_INDEX_URL": f"{DEAD_PROXY}/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull}
    return {**proxies, **no_index, "PIP_FIND_LINKS": "", "no_proxy": "", "NO_PROXY": ""}
