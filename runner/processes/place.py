"""Which process this is, of how many, and where process 0 is: by the config, our launcher or a scheduler's variables.

Variables: srun(1) of Slurm, mpirun(1) of Open MPI, "Environment Variables" of torchrun, and Kubernetes' indexed jobs.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from runner.config.schema import ClusterConfig
from runner.errors import ConfigError, invalid

VARIABLE = "RUNNER_PROCESS"  # what our launcher tells a process; see `Place.environment`
NAMES = ("single", "local", "auto", "explicit")
MOST = 4096
# a scheduler's job number picks one
_PORTS = 4096
_FIRST_PORT = 20_000
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """A process among the others.

    Attributes:
      index: from 0.
      count: how many they are.
      host: where process 0 listens.
      port: likewise.
      token: the secret that a process must know to be let in; empty: see `runner.processes.secret`.
      found: who told, in a word.
      device: kind of the mesh's devices, which our launcher has settled.
      job: the scheduler's name of the job, which is no secret.
    """

    index: int
    count: int
    host: str
    port: int
    token: str = field(default="", repr=False)
    found: str = "explicit"
    device: str = ""
    job: str = ""

    @property
    def is_launched(self) -> bool:
        """Whether our launcher started it, which shows what the processes say."""
        return self.found == "local"

    def environment(self) -> dict[str, str]:
        """Returns the variable that hands this to a process."""
        return {VARIABLE: json.dumps(asdict(self))}


_told: list[Place] = []
_presumed: list[Place] = []


@contextmanager
def presumed(count: int, found: str) -> Iterator[None]:
    """Lets configs be checked that a scheduler's processes will run, which it has not started yet.

    Args:
      count: how many they will be.
      found: what will tell them, in a word.
    """
    _presumed[:] = [Place(0, count, _LOOPBACK, _FIRST_PORT, found=found)]
    try:
        yield
    finally:
        _presumed.clear()


def is_presumed() -> bool:
    """Tells whether the processes of a config that is checked are another job's."""
    return bool(_presumed)


def from_launcher() -> Place | None:
    """Returns what our launcher said; its variable is taken out of the environment, which other processes inherit."""
    if said := os.environ.pop(VARIABLE, ""):
        _told[:] = [Place(**json.loads(said))]
    return _told[0] if _told else None


def find(config: ClusterConfig) -> Place | None:
    """Returns this process's place; None where it is alone, or is to start the others itself.

    Raises:
      ConfigError: keys that don't go with `cluster.name`, that are missing, or that no scheduler's variables fill.
    """
    check(config)
    if config.name == "single":
        return None
    launched = from_launcher()
    if launched is not None or config.name == "local":
        return launched
    found = _scheduled() if config.name == "auto" else None
    index = found.index if found is not None and config.index is None else config.index
    count = found.count if found is not None and config.processes is None else config.processes
    if config.name == "auto" and (index is None or not count):
        raise _untold(found)
    if index is None:
        raise invalid(
            "cluster.index", None, problem=f"0 to {(count or 1) - 1}, each process its own", fix="set cluster.index=0"
        )
    if config.coordinator is not None:
        host, port = _address(config.coordinator)
    elif found is not None and found.host:
        host = found.host
        port = found.port
    else:
        raise invalid(
            "cluster.coordinator",
            config.coordinator,
            problem="host:port of process 0",
            fix="set it, as cluster.coordinator=10.0.0.1:29400",
        )
    assert count is not None
    told_by = found or Place(index, count, host, port)
    place = Place(index, count, host, port, found=told_by.found, job=told_by.job)
    _check_numbers(place)
    return place if count > 1 else None


def count(config: ClusterConfig) -> int:
    """Returns over how many processes a run is spread; needs no place among them, which a plan does without.

    Raises:
      ConfigError: the group's keys can't work, or no scheduler's variables tell.
    """
    check(config)
    if config.name == "single":
        return 1
    if config.processes is not None:
        return config.processes
    found = _scheduled()
    if found is None or not found.count:
        raise _untold(found)
    return found.count


def _scheduled() -> Place | None:
    return _presumed[0] if _presumed else _found(os.environ, socket.gethostname())


def _untold(found: Place | None) -> ConfigError:
    """Returns what to say where `cluster=auto` finds too little."""
    if found is not None:
        return invalid("cluster.processes", None, problem=f"a number, which {found.found} does not tell", fix="set it")
    return invalid(
        "cluster.name",
        "auto",
        problem="the variables of Slurm, Open MPI, torchrun or Kubernetes, and none of them is set here",
        fix="start with srun, mpirun or torchrun, or set cluster=explicit; a plan needs cluster.processes alone",
    )


def check(config: ClusterConfig) -> None:
    """Checks the group's keys by themselves.

    Raises:
      ConfigError: the first that can't work.
    """
    name = config.name
    if name not in NAMES:
        raise invalid("cluster.name", name, problem=f"one of {', '.join(NAMES)}", fix="set cluster=local")
    idle = {
        "single": ("processes", "index", "coordinator", "interface", "requeue", "open_ports", "secret_file"),
        "local": ("index", "coordinator", "interface", "requeue", "secret_file"),
    }
    for key in idle.get(name, ()):
        value = getattr(config, key)
        if value is not None and value is not False:
            others = "local, auto or explicit" if key in ("processes", "open_ports") else "auto or explicit"
            raise invalid(
                f"cluster.{key}",
                value,
                problem=f"cluster={name} has no such key",
                fix=f"leave it out, or set cluster={others}",
            )
    if config.processes is None and name in ("explicit", "local"):
        raise invalid("cluster.processes", None, problem=f"cluster={name} needs it", fix="set cluster.processes=2")
    if config.processes is not None and not 1 <= config.processes <= MOST:
        raise invalid("cluster.processes", config.processes, problem=f"1 to {MOST}", fix="set cluster.processes=2")
    for key in ("timeout", "start_timeout"):
        if not 1.0 <= getattr(config, key) <= 1e6:
            raise invalid(
                f"cluster.{key}", getattr(config, key), problem="1 to 1e6 seconds", fix=f"set cluster.{key}=600"
            )
    if config.coordinator is not None:
        _address(config.coordinator)


def _check_numbers(place: Place) -> None:
    if not 0 <= place.index < place.count:
        raise invalid(
            "cluster.index",
            place.index,
            problem=f"0 to {place.count - 1}, as there are {place.count} processes",
            fix="number the processes from 0",
        )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise invalid("cluster.coordinator", text, problem="host:port", fix="write cluster.coordinator=10.0.0.1:29400")
    return host.strip("[]"), int(port)


def scheduled(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Returns the place that a scheduler's variables tell, of a process that it started beside others; else None."""
    try:
        found = _found(environ, socket.gethostname())
    except ConfigError:
        return None
    return found if found is not None and found.count > 1 else None


def _found(environ: Mapping[str, str], own_host: str) -> Place | None:
    for read in (_open_mpi, _slurm, _torchrun, _kubernetes):
        place = read(environ)
        if place is not None:
            alone = place.host in (own_host, own_host.partition(".")[0]) and place.found != "Kubernetes"
            return replace(place, host=_LOOPBACK) if alone and _is_one_machine(environ) else place
    return None


def _is_one_machine(environ: Mapping[str, str]) -> bool:
    return environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES")) == "1"


def _slurm(environ: Mapping[str, str]) -> Place | None:
    if not {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NODELIST"} <= set(environ):
        return None
    count = int(environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", "1")))
    job = int(environ["SLURM_JOB_ID"]) * 16 + _number(environ.get("SLURM_STEP_ID"))
    # A node's name in Slurm need not be one that resolves.
    host = _LOOPBACK if environ.get("SLURM_STEP_NUM_NODES") == "1" else first_node(environ["SLURM_STEP_NODELIST"])
    return Place(int(environ["SLURM_PROCID"]), count, host, _port(job), found="Slurm", job=f"Slurm {job}")


def first_node(nodes: str) -> str:
    """Returns the first of Slurm's list of nodes.

    >>> first_node("gpu[007-009,12],login"), first_node("a1,a2")
    ('gpu007', 'a1')
    """
    found = re.match(r"([^\[,]+)(?:\[([0-9]+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


def _open_mpi(environ: Mapping[str, str]) -> Place | None:
    if not {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} <= set(environ):
        return None
    size = int(environ["OMPI_COMM_WORLD_SIZE"])
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    job = _number(uri.partition(".")[0].strip('"')) or _number(environ.get("PMIX_NAMESPACE", "").rpartition("-")[2])
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size):
        host = _LOOPBACK
    else:
        found = re.search(r"tcp6?://\[?([^,;:\]]+)", uri)
        host = found[1] if found else ""
    rank = int(environ["OMPI_COMM_WORLD_RANK"])
    return Place(rank, size, host, _port(job), found="Open MPI", job=f"Open MPI {job}")


def _torchrun(environ: Mapping[str, str]) -> Place | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environ):
        return None
    # torchrun itself may listen at MASTER_PORT.
    port = int(environ["MASTER_PORT"]) + (1 if "TORCHELASTIC_RUN_ID" in environ else 0)
    return Place(int(environ["RANK"]), int(environ["WORLD_SIZE"]), environ["MASTER_ADDR"], port, found="torchrun")


def _kubernetes(environ: Mapping[str, str]) -> Place | None:
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    index = environ["JOB_COMPLETION_INDEX"]
    name, _, domain = socket.getfqdn(environ.get("HOSTNAME", "")).partition(".")
    first = f"{name.removesuffix(f'-{index}')}-0" + (f".{domain}" if domain else "")
    # An indexed job does not tell how many it has: cluster.processes does.
    return Place(int(index), 0, first, _FIRST_PORT, found="Kubernetes")


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _port(job: int) -> int:
    return _FIRST_PORT + job % _PORTS


def address_of(interface: str) -> str:
    """Returns the IPv4 address of a network interface, or the address itself.

    Raises:
      ConfigError: this machine has no such interface, or not the address.
    """
    try:
        if re.fullmatch(r"[0-9.]+|.*:.*", interface):
            with socket.socket(socket.AF_INET6 if ":" in interface else socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.bind((interface, 0))  # an address of another machine can't be
            return interface
        import fcntl  # Linux alone has the request
        import struct

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            asked = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(one.fileno(), 0x8915, asked)[20:24])  # SIOCGIFADDR
    except (OSError, ImportError) as error:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise invalid(
            "cluster.interface", interface, problem=f"one of {names} with an address, or that", fix="leave it out"
        ) from error
