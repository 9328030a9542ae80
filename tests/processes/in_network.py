"""Runs a module as `python -m` does, in a network of its own: `python -m tests.processes.in_network NAME MODULE`.

NAME is a network namespace, see ip-netns(8).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
from pathlib import Path

_CLONE_NEWNET = 0x40000000


def main() -> None:
    """Enters the namespace, before any thread is there, and runs the module."""
    name, module, *arguments = sys.argv[1:]
    with Path(f"/var/run/netns/{name}").open() as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
