"""Resolves rank, world size and coordinator address from the config, the launcher or the scheduler.

Variables: srun(1) of Slurm, mpirun(1) of Open MPI, "Environment Variables" of torchrun, and Kubernetes' indexed jobs.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from runner.config.schema import ClusterConfig
from runner.errors import ConfigError, invalid, shown

# The launcher's variable for each process; see `Place.environment`.
VARIABLE = "RUNNER_PROCESS"
# The number of a scheduler's job selects one of these ports, so that jobs on one machine rarely collide. They are
# below Linux's ephemeral ports, which start at 32768.
_PORTS = 4096
_FIRST_PORT = 20_000
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """A process among the others.

    Attributes:
      index: its rank, from 0.
      count: number of processes (the world size); 0: the scheduler does not tell.
      host: on which process 0 listens; empty: the scheduler does not tell.
      port: on which process 0 listens.
      token: the secret that a process must know to join; empty: see `runner.cluster.secret`.
      source: `explicit`, `local` for the launcher, or the scheduler's name.
      device: type of the mesh's devices, which the launcher has settled.
      job: the scheduler's name of the job, which is not secret.
      begun: of process 0: the launcher's descriptor at which it says that all have joined.
    """

    index: int
    count: int
    host: str
    port: int
    token: str = field(default="", repr=False)
    source: str = "explicit"
    device: str = ""
    job: str = ""
    begun: int | None = None

    def environment(self) -> dict[str, str]:
        """Returns the variable that gives this place to a process."""
        return {VARIABLE: json.dumps(asdict(self))}


# The launcher's place, once its variable has been read.
_launched: list[Place] = []


def from_launcher() -> Place | None:
    """Returns the launcher's place for this process; None: the launcher did not start it."""
    # Removed from the environment, which this process's own children inherit.
    text = os.environ.pop(VARIABLE, "")
    if text:
        _launched[:] = [Place(**json.loads(text))]
    if not _launched:
        return None
    return _launched[0]


def find(config: ClusterConfig) -> Place | None:
    """Returns this process's place; None: it is the only one, or will start the others itself.

    A ConfigError names a key that is invalid, or that is missing and not given by a scheduler.
    """
    if config.name == "single":
        return None
    launched = from_launcher()
    if launched is not None or config.name == "local":
        # The launcher may start a single process, as `runner.verify` does.
        if launched is None or launched.count == 1:
            return None
        return launched
    place = _with_count(config)
    # Keys of the config replace what the scheduler gives.
    if config.index is not None:
        place = replace(place, index=config.index)
    if config.coordinator is not None:
        # Its form is checked by the schema.
        host, _, port = config.coordinator.rpartition(":")
        place = replace(place, host=host.strip("[]"), port=int(port))
    if not 0 <= place.index < place.count:
        problem = f"must be a number from 0 to {place.count - 1}, different for each process"
        fix = "set it for each; Kubernetes gives it with completionMode: Indexed, Slurm with srun"
        raise invalid("cluster.index", config.index, problem=problem, fix=fix)
    if not place.host:
        fix = "set it, such as cluster.coordinator=10.0.0.1:29400"
        raise invalid("cluster.coordinator", None, problem="needs the host and port of process 0", fix=fix)
    if place.count == 1:
        return None
    return place


def count(config: ClusterConfig) -> int:
    """Returns the number of processes of a run (the world size), which is all that a plan needs; raises as `find`."""
    if config.name == "single":
        return 1
    if config.processes is not None:
        return config.processes
    return _with_count(config).count


def has_launcher(config: ClusterConfig) -> bool:
    """Returns whether a launcher starts the run's processes (`cluster=local`), and starts them again after a loss."""
    return config.name == "local" and count(config) > 1


def _with_count(config: ClusterConfig) -> Place:
    """Returns the scheduler's place, if any, with the number of processes; a ConfigError if nothing gives that."""
    found = None
    if config.name == "auto":
        found = _from_scheduler()
    place = found or Place(-1, 0, "", 0)
    if config.processes is not None:
        place = replace(place, count=config.processes)
    if place.count:
        return place
    if config.name == "auto" and found is None:
        problem = "no scheduler detected (the variables of Slurm, Open MPI, torchrun and Kubernetes are not set)"
        fix = "launch with srun, mpirun or torchrun, or set cluster=explicit; a plan needs cluster.processes only"
        raise invalid("cluster", "auto", problem=problem, fix=fix)
    source = found.source if found else f"cluster={config.name}"
    problem = f"needs the number of processes, which {source} does not give"
    raise invalid("cluster.processes", None, problem=problem, fix="set cluster.processes")


def scheduled() -> Place | None:
    """Returns the place of a process that a scheduler started as one of several; else None."""
    with suppress(ConfigError):
        # Also if they disagree with each other, as `_within` says.
        for place in (_torchrun(os.environ), _outer(os.environ)):
            if place is not None and place.count > 1:
                return place
    return None


def _from_scheduler() -> Place | None:
    # Of launchers within each other the inner one has started this process: torchrun may run within all others.
    environ = os.environ
    outer = _outer(environ)
    inner = _torchrun(environ)
    if outer is not None and inner is not None:
        return _within(outer, inner, environ)
    return outer or inner or _kubernetes(environ)


def _outer(environ: Mapping[str, str]) -> Place | None:
    # mpirun may run within a Slurm job, whose own variables then describe one process per machine.
    return _open_mpi(environ) or _slurm(environ)


def _within(outer: Place, inner: Place, environ: Mapping[str, str]) -> Place:
    """Returns the place of a process that has torchrun's variables, `inner`, within another launcher.

    If they disagree, a ConfigError: each task would train a run of its own, or a variable is from somewhere else.
    """
    is_torchrun = "TORCHELASTIC_RUN_ID" in environ
    if not is_torchrun and (inner.index, inner.count) == (outer.index, outer.count):
        # A script has set them for PyTorch, by the outer launcher's.
        return outer
    # There is one of torchrun's agents per task of the outer launcher.
    have_met = is_torchrun and environ.get("GROUP_WORLD_SIZE") == str(outer.count)
    if outer.count == 1 or have_met:
        return inner
    problem = (
        f"{outer.source} started {outer.count} tasks, but RANK={inner.index} and WORLD_SIZE={inner.count} are set, as "
        "by torchrun in each task for itself"
    )
    fix = "unset RANK and WORLD_SIZE, give torchrun --nnodes and one --rdzv-endpoint, or set cluster=explicit"
    raise invalid("cluster", "auto", problem=problem, fix=fix)


def _slurm(environ: Mapping[str, str]) -> Place | None:
    if not {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NODELIST"} <= set(environ):
        return None
    count = 1
    # Of the step, or else of the job.
    for key in ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"):
        if key in environ:
            count = _integer(environ, key)
    # The first 16 steps of a job have numbers, and thus ports, of their own: several may run at the same time.
    job = _integer(environ, "SLURM_JOB_ID") * 16 + _number(environ.get("SLURM_STEP_ID"))
    host = first_node(environ["SLURM_STEP_NODELIST"])
    # The name of a node in Slurm need not resolve.
    if environ.get("SLURM_STEP_NUM_NODES") == "1":
        host = _LOOPBACK
    return Place(_integer(environ, "SLURM_PROCID"), count, host, _port(job), source="Slurm", job=f"Slurm {job}")


def first_node(nodes: str) -> str:
    """Returns the first node of a list of nodes in Slurm's notation.

    >>> first_node("gpu[007-009,12],login"), first_node("a1,a2")
    ('gpu007', 'a1')
    """
    # A prefix, the first number of a range in brackets, and a suffix.
    match = re.match(r"([^\[,]+)(?:\[([0-9]+)[^\]]*\])?([^,\[]*)", nodes)
    if match is None:
        return nodes
    return "".join(match.groups(""))


def _open_mpi(environ: Mapping[str, str]) -> Place | None:
    if not {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} <= set(environ):
        return None
    size = _integer(environ, "OMPI_COMM_WORLD_SIZE")
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    job = _number(uri.partition(".")[0].strip('"')) or _number(environ.get("PMIX_NAMESPACE", "").rpartition("-")[2])
    host = ""
    match = re.search(r"tcp6?://\[?([^,;:\]]+)", uri)
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size):
        host = _LOOPBACK
    elif match:
        host = match[1]
    rank = _integer(environ, "OMPI_COMM_WORLD_RANK")
    return Place(rank, size, host, _port(job), source="Open MPI", job=f"Open MPI {job}")


def _torchrun(environ: Mapping[str, str]) -> Place | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environ):
        return None
    port = _integer(environ, "MASTER_PORT")
    # torchrun itself may listen there.
    if "TORCHELASTIC_RUN_ID" in environ:
        port += 1
    host = environ["MASTER_ADDR"]
    # On a single machine nobody else should be able to connect.
    if environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]:
        host = _LOOPBACK
    return Place(_integer(environ, "RANK"), _integer(environ, "WORLD_SIZE"), host, port, source="torchrun")


def _kubernetes(environ: Mapping[str, str]) -> Place | None:
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    index = environ["JOB_COMPLETION_INDEX"]
    name, _, domain = socket.getfqdn(environ.get("HOSTNAME", "")).partition(".")
    first = f"{name.removesuffix(index)}0"
    if domain:
        first += f".{domain}"
    # An indexed job does not give its number of processes: cluster.processes does.
    return Place(_integer(environ, "JOB_COMPLETION_INDEX"), 0, first, _FIRST_PORT, source="Kubernetes")


def _integer(environ: Mapping[str, str], key: str) -> int:
    """Returns a launcher's variable; raises ConfigError if it is no integer, as one that a script has set."""
    text = environ[key]
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        problem = f"the variable {key}={shown(text)} must be an integer"
        raise invalid("cluster", "auto", problem=problem, fix=f"unset {key}, or set cluster=explicit")
    return int(text)


def _number(text: str | None) -> int:
    if text is None or not text.isdigit():
        return 0
    return int(text)


def _port(job: int) -> int:
    return _FIRST_PORT + job % _PORTS
