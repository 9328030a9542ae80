"""The process that `tests.forks` forks programs of: `python -m tests.fork_server LIBRARY DESCRIPTOR`.

It imports a library and what runs import beside it, and initializes nothing: TensorFlow's and XLA's devices, threads
and flags come to be in the forked programs, as they would after a real start.
"""

import atexit
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from runner import figures
from runner.cluster import launch
from runner.host.outputs import quiet_native_log
from runner.task import pictures
from tests import forks, hydra_reads

_BESIDE = (
    *("matplotlib.pyplot", "mlflow", "hydra", "hydra.core.plugins", "rich.console", "rich.progress", "rich.table"),
    *("rich.tree", "safetensors.numpy", "h5py", "alembic.command", "mlflow.store.tracking.sqlalchemy_store"),
    *("mlflow.store.tracking.sqlalchemy_workspace_store", "mlflow.system_metrics.system_metrics_monitor"),
    *("sqlalchemy.dialects.sqlite", "rich._emoji_codes", "simplejpeg"),
    # All that composes and checks a config. What computes is left to the programs: some replace parts of it first.
    "runner.cli.app",
)
Request = Mapping[str, Any]
# What a terminal, a scheduler or a launcher sends to a whole process group. It is meant for the program, not for the
# server beside it, which ends when the program does.
_FOR_THE_PROGRAM = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def preload(library: str) -> None:
    """Imports a library as the product does, and what runs import beside it; the other library stays away."""
    from runner.engine import registry
    from runner.model import loading
    from runner.tracking import mlflow_setup as of_mlflow

    for name in _BESIDE:
        if importlib.util.find_spec(name.split(".")[0]) is not None:
            importlib.import_module(name)
        if name == "mlflow":
            of_mlflow.quiet()

    entry, load = registry.ENGINES["jax" if library == forks.JAX else "keras_dtensor"], loading.load
    load(entry.libraries, without=entry.hidden)
    if library != forks.JAX:
        importlib.import_module("mlflow.tensorflow")
    hydra_reads.remember(at_once=True)
    drawing = (figures.curves, figures.against, figures.plan, figures.front, figures.examples)
    for draw in (*drawing, pictures.confusion, pictures.segmentation, pictures.predicted):
        setattr(sys.modules[draw.__module__], draw.__name__, partial(_draw, draw))

    others = {name for each in registry.ENGINES.values() for name in each.libraries} - {*entry.libraries}

    def load_same(names: Sequence[str], *, without: Sequence[str]) -> None:
        if others & {*names}:
            raise RuntimeError(f"this process was forked of one with {library}; name the library that it imports")
        load(names, without=without)

    loading.load = load_same


def _draw(draw: Callable[..., None], path: Path, *given: Any, **options: Any) -> None:
    if os.environ.get(forks.DRAWN[0]) == forks.DRAWN[1]:
        draw(path, *given, **options)
    else:
        Image.new("RGB", (8, 8)).save(path)


def serve(connection: socket.socket) -> Request:
    """Forks a process for each request; returns in the forked ones, with the request, and never in the server.

    What is forked here is left by its parent at once, so that the process that asked adopts it, and waits for that.
    It is in its own session or process group before its id is known, as after a real start.
    """
    while True:
        try:
            header, streams, _, _ = socket.recv_fds(connection, 4, 3)
            size = header + forks.receive(connection, 4 - len(header))
            request = json.loads(forks.receive(connection, struct.unpack("!I", size)[0]))
        except (EOFError, ConnectionError):
            os._exit(0)  # who asked is gone
        born, told = os.pipe()
        adopted, go = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            if request["new_session"]:
                os.setsid()
            if request["process_group"] >= 0:
                os.setpgid(0, request["process_group"])
            os.write(told, struct.pack("!i", os.getpid()))
            _close(born, told, go)
            connection.close()
            os.read(adopted, 1)
            _close(adopted)
            return {**request, "streams": streams}
        _close(told, adopted, *streams)
        (pid,) = struct.unpack("!i", os.read(born, 4))
        os.waitpid(between, 0)
        _close(born, go)
        connection.sendall(struct.pack("!i", pid))


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def next_program(library: str, connection: socket.socket, mask: Iterable[int]) -> Request:
    """Serves, and returns in each forked program; a server of its own, for what it starts, is forked of it first.

    That server is in the program's own session and process group. Left in the group of whoever asked, it would have a
    parent in another group of the session, and when that parent ends, the kernel would look whether the group that
    asked is orphaned. Under `setsid`, in a container or in cron, pytest's own group is; while a test has stopped
    a process in it, the kernel would send SIGHUP to all of it.

    Args:
      library: see `preload`.
      connection: see `serve`.
      mask: signals that are blocked in a program. A server blocks more.
    """
    while True:
        request = serve(connection)
        ours, connection = socket.socketpair()
        if os.fork():
            connection.close()
            forks.inherited = forks.Server(library, ours, request["environment"])
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return request
        ours.close()
        _close(*request["streams"])


def take_over(request: Request, installed: list[str]) -> list[str]:
    """Makes this process what a real start would have made.

    Args:
      request: see `forks.Server.fork`.
      installed: the interpreter's own import path.

    Returns:
      The interpreter's arguments.
    """
    for number, stream in enumerate(request["streams"]):
        os.dup2(stream, number)
    _close(*request["streams"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    launch.AS_TYPED[launch.FULL_ERROR] = os.environ.get(launch.FULL_ERROR, "")  # read at its import
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdout", "stderr"), start=1):
        # New ones: the server's own remember whether they could seek.
        binary = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        getattr(binary, "raw", binary).name = f"<{name}>"
        by_lines = not unbuffered and (number == 2 or os.isatty(number))
        errors = getattr(sys, f"__{name}__").errors
        text = io.TextIOWrapper(binary, "utf-8", errors, line_buffering=by_lines, write_through=unbuffered)
        setattr(sys, name, text)
    arguments = list(request["arguments"])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    here = request["cwd"] if arguments[0] == "-m" else ""
    sys.path[:] = list(dict.fromkeys([here, *paths, *installed]))  # a .pth file adds no path that is there already
    sys.orig_argv[:] = [sys.executable, *arguments]
    importlib.invalidate_caches()
    np.random.seed()
    subprocess.Popen = forks.Popen  # type: ignore[assignment, misc]
    return arguments


def execute(arguments: list[str]) -> None:
    """Runs a module or a text as `__main__`."""
    option, what, *rest = arguments
    sys.argv[:] = [option, *rest]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(what, "<string>", "exec"), main.__dict__)


def leave(code: int) -> NoReturn:
    """Ends a program as a real one ends up to its exit handlers, and what it has printed.

    The interpreter would then take apart all that the server has imported. That copies its memory, and costs more than
    most programs do.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter says what it makes of it
    ctypes.CDLL(None).fflush(None)
    os._exit(code & 0xFF)


def main() -> None:
    """Serves until the process that started this one is gone."""
    library, descriptor = sys.argv[1:]
    installed = sys.path[1:]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PROGRAM)
    with quiet_native_log(Path(os.devnull)):
        preload(library)
    gc.collect()
    gc.freeze()  # what is imported stays: no collection in a forked process needs to look at it, and copy its pages
    request = next_program(library, socket.socket(fileno=int(descriptor)), mask)
    try:
        execute(take_over(request, installed))
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise  # the interpreter prints it
        leave(ended.code or 0)
    leave(0)


if __name__ == "__main__":
    main()
