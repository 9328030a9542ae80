"""Starts Python programs as `subprocess` does, but forked from a process that has imported the libraries already.

Importing TensorFlow or JAX, MLflow and the rest is most of what a short run costs. A program that is forked here gets
what a real start gives it: environment, working folder, arguments, standard streams, import path, `__main__` and the
way it ends; `tests.fork_server` is the other side. It is a child of the caller like any other process. Its pictures
are blank unless `DRAWN` is set: to draw them takes half of a short run's time, and tests of pictures draw them.

What can't be forked alike is started for real: another interpreter, options of `subprocess.Popen` that have no place
here, or an environment with other values of what libraries read as they are imported. So is everything where
`RUNNER_TESTS_FORK=0`, and on other systems than Linux. Tests of the start itself use `subprocess`.
"""

import ctypes
import inspect
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TENSORFLOW, JAX = "tensorflow", "jax"
OF_ENGINE = {"jax": JAX, "keras_dtensor": TENSORFLOW}
OF_KERAS = {"keras": JAX, "tf_keras": TENSORFLOW}
LIBRARIES = ("tensorflow", "tf_keras", "jax", "keras")
# XLA's work on fast code for CPUs is most of a short run's time. What is computed is the same without it, up to
# rounding and except for gradients of maxima over a whole dim, such as those of global max pooling: see
# docs/bugs/xla_maximum_gradient.py. Those over windows, as of MaxPooling2D, are right (measured for 1 to 3 dims).
SLOW_CODE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 12):  # later ones do not know this flag, and end at it
    SLOW_CODE += " --xla_cpu_use_fusion_emitters=false"
# For tests with maxima over a whole dim. Compiling takes 2.5 times as long.
RIGHT_MAXIMA = SLOW_CODE.replace("optimization_level=0", "optimization_level=1")
# What the product sets before the imports, see `runner.engine` and `runner.tracking.mlflow_setup`.
_ALWAYS = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "8",
}
PREPARED = {
    TENSORFLOW: _ALWAYS | {"TF_USE_LEGACY_KERAS": "1"},
    JAX: _ALWAYS | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
}
_ALL_READ = ("TF_", "MLFLOW_", "MPL", "PYTHON", "OMP_", "OPENBLAS_", "HOME", "LANG", "LC_")
_READ_AT_IMPORT = {TENSORFLOW: _ALL_READ, JAX: (*_ALL_READ, "JAX_", "KERAS")}
_READ_LATER = {"MLFLOW_TRACKING_URI", "PYTHONPATH", "PYTHONUNBUFFERED"}
_COMMANDS = (
    *("runner", "runner.plan", "runner.verify", "runner.evaluate", "runner.generate", "runner.export"),
    "tests.verify.broken",
)
_SIDES = ("runner.verify.worker", "tests.verify.broken_worker")
_PR_SET_CHILD_SUBREAPER = 36
_NAMES = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Server:
    """A process with a library imported, of which others are forked.

    Attributes:
      framework: that is imported, `tensorflow` or `jax`.
      environment: of the process that started it.
    """

    def __init__(self, library: str, connection: socket.socket, environment: Mapping[str, str]) -> None:
        self.framework, self.environment = library, dict(environment)
        self.connection = connection

    def accepts(self, environment: Mapping[str, str]) -> bool:
        """Returns whether the imported libraries have read what this environment holds."""
        return not _read_otherwise(self.framework, environment, self.environment)

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Returns the id of a new child of this process that runs what is requested.

        Args:
          request: `arguments` after the interpreter, `cwd`, `environment`, `new_session` and `process_group`.
          streams: file descriptors that become its 0, 1 and 2.
        """
        body = json.dumps(request).encode()
        with _forking:
            adopt_orphans(True)  # the server's own child ends at once and leaves its child to us
            try:
                socket.send_fds(self.connection, [struct.pack("!I", len(body))], list(streams))
                self.connection.sendall(body)
                (pid,) = struct.unpack("!i", receive(self.connection, 4))
            finally:
                adopt_orphans(False)
        return int(pid)


def _read_otherwise(library: str, environment: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    """Returns the variables that a library would read otherwise in one environment than in the one before."""
    keys = []
    for key in sorted({*environment, *before}):
        if key.startswith(_READ_AT_IMPORT[library]) and key not in _READ_LATER:
            value, held = environment.get(key), before.get(key)
            if value != held and value != PREPARED[library].get(key, held):
                keys.append(key)
    return keys


def why_all_starts_are_real() -> str | None:
    """Returns what has changed in this process so that it can no longer fork what it starts; None: it can."""
    imported = [name for name in LIBRARIES if sys.modules.get(name) is not None]
    if imported:
        return f"{', '.join(imported)} imported"
    if start_environment:
        for library in PREPARED:
            keys = _read_otherwise(library, os.environ, start_environment)
            if keys:
                return f"{', '.join(keys)} changed in the environment"
    return None


def receive(connection: socket.socket, count: int) -> bytes:
    """Reads so many bytes; EOFError where the other side is gone."""
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise EOFError("the fork server is gone")
        found += more
    return found


def adopt_orphans(on: bool) -> None:
    """Makes this process the parent of those below it that lose theirs, or leaves them to the system again."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


REAL = ("RUNNER_TESTS_FORK", "0")  # set in the environment: every program is started for real
DRAWN = ("RUNNER_TESTS_DRAW", "1")  # set in the environment: forked programs draw their pictures
servers: dict[str, Server] = {}
# Of the tests' own start, where set: a server may be started by a test that has changed its environment.
start_environment: dict[str, str] = {}
_forking = threading.RLock()  # who adopts orphans is a property of the process, not of a server
inherited: Server | None = None  # in a forked program: the server that its own children are forked of
_real_popen = subprocess.Popen


def _server(library: str) -> Server | None:
    if inherited is not None:
        return inherited if inherited.framework == library else None
    with _forking:
        if library not in servers:
            servers[library] = _started(library)
        return servers[library]


def _started(library: str) -> Server:
    ours, its = socket.socketpair()
    before = start_environment or dict(os.environ)
    environment = {key: value for key, value in before.items() if key not in _READ_LATER} | PREPARED[library]
    command = [sys.executable, "-m", "tests.fork_server", library, str(its.fileno())]
    process = _real_popen(command, env=environment, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    process.returncode = 0  # it ends when this process does, and nobody waits for it
    its.close()
    return Server(library, ours, before)


def library_of(arguments: Sequence[str]) -> str | None:
    """Returns the library that one of the runner's commands imports; None: not known, so it is started for real.

    Args:
      arguments: of the interpreter, without it.
    """
    if arguments[0] == "-m" and arguments[1] in _SIDES:
        config = json.loads((Path(arguments[2]) / "request.json").read_text())
        return JAX if config["engine"]["name"] == JAX else TENSORFLOW
    if arguments[0] != "-m" or arguments[1] not in _COMMANDS:
        return None
    return JAX if "engine=jax" in arguments else TENSORFLOW


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, whose Python programs are forked where that is the same.

    Args:
      library: that a program imports, where its arguments do not say.
    """

    def __init__(self, arguments: Any, *, library: str | None = None, **options: Any) -> None:
        self._library = library
        super().__init__(arguments, **options)

    def _execute_child(self, *given: Any) -> None:
        bound = _NAMES.bind(self, *given).arguments
        environment = dict(os.environ if bound["env"] is None else bound["env"])
        server = self._server(bound, environment)
        if server is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        request = {
            "arguments": [str(one) for one in bound["args"][1:]],
            "cwd": str(bound["cwd"] or Path.cwd()),
            "environment": environment,
            "new_session": bool(bound["start_new_session"]),
            "process_group": bound["process_group"],
        }
        pipes = [bound[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self.pid = server.fork(
                request, [fd if fd >= 0 else i for i, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
            )
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _server(self, bound: Mapping[str, Any], environment: Mapping[str, str]) -> Server | None:
        if sys.platform != "linux" or os.environ.get(REAL[0]) == REAL[1]:
            return None
        arguments = bound["args"]
        usual = {"preexec_fn": None, "pass_fds": (), "executable": None, "shell": False, "restore_signals": True}
        if isinstance(arguments, str) or arguments[0] != sys.executable:
            return None
        if any(bound[name] != value for name, value in usual.items()):
            return None
        library = self._library or library_of([str(one) for one in arguments[1:]])
        server = _server(library) if library else None
        return server if server is not None and server.accepts(environment) else None


def run(
    arguments: Sequence[str],
    *,
    timeout: float | None = None,
    check: bool = False,
    given: str | None = None,
    library: str | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Does what `subprocess.run` does, with both outputs as text, by a fork.

    Args:
      arguments: the command.
      timeout: in seconds, after which the process is killed and TimeoutExpired raised.
      check: raise CalledProcessError where it fails.
      given: what it reads on stdin.
      library: see `Popen`.
      options: of `subprocess.Popen`.
    """
    held: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    held |= {} if given is None else {"stdin": subprocess.PIPE}
    with Popen(arguments, library=library, **held, **options) as process:
        try:
            out, err = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
    done = subprocess.CompletedProcess(list(arguments), process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def python(
    *arguments: str,
    folder: Path = ROOT,
    code: int = 0,
    library: str | None = None,
    timeout: float = 600,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python with this checkout on its path, and checks how it ends.

    Args:
      *arguments: of the interpreter, such as `-m`, a module and its arguments.
      folder: in which it runs.
      code: its exit code.
      library: see `Popen`.
      timeout: in seconds.
      **environment: variables over those of this process.
    """
    held = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = run([sys.executable, *arguments], library=library, cwd=folder, env=held, timeout=timeout)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return done


def answer(*arguments: str, **options: Any) -> Any:
    """Returns the JSON in the last line that a program of `python` prints."""
    return json.loads(python(*arguments, **options).stdout.splitlines()[-1])
