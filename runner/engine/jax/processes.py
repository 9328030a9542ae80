"""JAX in several processes: its coordination service, and arrays that span processes.

JAX's own heartbeats end a process by a C++ abort when another one is gone, whatever Python still has to record. So
every process except process 0 connects to the service through a relay of its own, which lives as long as the process
does, and `runner.cluster` notices lost processes.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress

import jax
import numpy as np
from jax.sharding import NamedSharding

from runner.cluster.launch import free_port
from runner.cluster.member import Member
from runner.cluster.team import Team
from runner.data.base import Array
from runner.engine.jax import private
from runner.engine.mappings import subset

# Heartbeat timeout, three years: JAX is not to notice a lost process, see above.
_NEVER_S = 10**8
# How long a process waits for JAX's service. All processes have met before, so the service is seconds away; a busy
# machine may need longer to import JAX in one of them.
_START_S = 120
# How long JAX waits for the other processes as a process exits. Its default of 300 s would keep a failed one from
# ending.
_SHUTDOWN_S = 1
# Of one read in the relay.
_CHUNK_BYTES = 1 << 16


def connect(team: Team) -> None:
    """Connects JAX to the other processes, once; comes before its devices are made."""
    if not isinstance(team, Member) or jax.distributed.is_initialized():
        return
    host, port = team.broadcast("JAX's service", lambda: (team.address, free_port(team.address)))
    # An IPv6 host is written in brackets before a port.
    service = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # The first process runs the service; the others reach it through a relay of their own.
    address = service
    if not team.is_first:
        address = f"127.0.0.1:{_start_relay(host, port)}"
    private.bind_gloo(team.address)
    # JAX's preemption service would take over SIGTERM from our handler.
    jax.config.update("jax_enable_preemption_service", False)
    # gRPC would look for the service behind a proxy that is configured for the internet.
    proxies = {}
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            proxies[name] = os.environ.pop(name)
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            coordinator_bind_address=service,
            num_processes=team.count,
            process_id=team.index,
            # JAX would otherwise detect a scheduler by its variables, and keep each process to one GPU.
            cluster_detection_method="deactivate",
            initialization_timeout=_START_S,
            heartbeat_timeout_seconds=_NEVER_S,
            shutdown_timeout_seconds=_SHUTDOWN_S,
        )
    finally:
        os.environ.update(proxies)


def _start_relay(host: str, port: int) -> int:
    """Starts this process's relay to a service and returns its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, _ = listening.accept()
            try:
                far = socket.create_connection((host, port), timeout=_START_S)
            except OSError:
                # JAX tries again.
                near.close()
                continue
            far.settimeout(None)
            threading.Thread(target=_forward, args=(near, far), daemon=True).start()
            threading.Thread(target=_forward, args=(far, near), daemon=True).start()

    threading.Thread(target=serve, name="jax-relay", daemon=True).start()
    relay_port: int = listening.getsockname()[1]
    return relay_port


def _forward(source: socket.socket, sink: socket.socket) -> None:
    """Forwards bytes until the source ends. The sink stays open, so that JAX does not notice a lost service."""
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            sink.sendall(data)


def placed_all(arrays: Mapping[str, Array], shardings: Mapping[str, NamedSharding]) -> dict[str, jax.Array]:
    """Returns host arrays on the mesh, by name. With several processes, each reads the shards of its own devices."""
    if all(shardings[name].is_fully_addressable for name in arrays):
        # One call for all arrays, as each call has its own cost on the host.
        return dict(jax.device_put(dict(arrays), subset(shardings, arrays)))
    # Not `device_put`: with several processes it compares the whole array by a collective, which would meet the
    # step's own collectives if it runs in the thread that prefetches.
    placed = {}
    for name, array in arrays.items():
        whole = np.asarray(array)
        placed[name] = jax.make_array_from_callback(whole.shape, shardings[name], whole.__getitem__)
    return placed
