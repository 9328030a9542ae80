"""DTensor's part of several processes: a client each, and tensors whose pieces lie in several."""

from __future__ import annotations

import os

from tensorflow.experimental import dtensor

from runner.engine.dtensor import private
from runner.processes.launch import free_port
from runner.processes.member import Member
from runner.processes.team import Team, current

_connected: list[bool] = []  # whether this process is a client; DTensor can't be told twice


def connect(team: Team, kind: str) -> None:
    """Makes this process one of DTensor's clients, once; comes before TensorFlow's devices are made.

    TensorFlow's own watch over the clients is left out: client 0 would wait for ever for one that never comes, and it
    ends processes that live. `runner.processes` notices both.

    Args:
      team: the processes.
      kind: of the devices, `CPU` or `GPU`.
    """
    if not isinstance(team, Member) or _connected:
        return
    _connected.append(True)
    host = f"[{team.address}]" if ":" in team.address else team.address
    jobs = team.all_gather("DTensor's clients", f"{host}:{free_port(team.address)}")
    os.environ["DTENSOR_JOB_NAME"] = "worker"
    os.environ["DTENSOR_CLIENT_ID"] = str(team.index)
    os.environ["DTENSOR_JOBS"] = ",".join(jobs)
    dtensor.initialize_accelerator_system(kind, enable_coordination_service=False)
    team.all_gather("DTensor's servers", True)  # none is asked before it answers


def is_here(mesh: dtensor.Mesh) -> bool:
    """Tells whether all devices of a mesh are this process's."""
    return bool(len(mesh.local_device_ids()) == mesh.size)


def wait_for_devices(mesh: dtensor.Mesh) -> None:
    """Waits until what was started is done, where other processes take part in it."""
    if not is_here(mesh):
        with current().waiting():
            private.wait_for_devices()
