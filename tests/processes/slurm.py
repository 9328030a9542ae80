"""A Slurm cluster of a test's own: munge, a controller and one node, from Debian's packages, in a temporary folder."""

import os
import platform
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from runner.cluster.launch import free_port

_PROGRAMS = ("setpriv", "munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel", "squeue")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_NODE = "node"
_START_S = 60.0


def missing() -> str:
    """Returns in words why there can be no cluster here; empty where there can."""
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if lacking:
        return f"{lacking[0]} is not installed (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "a Slurm node must be started by root"


class Slurm:
    """A running cluster of one node with two processors.

    Attributes:
      environment: of a command that asks this cluster.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="runner-slurm-"))
        self._folder.chmod(0o755)  # who asks munge looks at the folder of its socket
        self._daemons: list[subprocess.Popen[bytes]] = []
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        self.environment = {**inherited, "SLURM_CONF": str(self._folder / "slurm.conf"), "PATH": _PATH}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        folder = self._folder
        key, socket = folder / "munge.key", folder / "munge.socket"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(self._config(socket))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        for name in ("state", "spool"):
            (folder / name).mkdir()
        files = [f"--{kind}-file={folder / f'munge.{kind}'}" for kind in ("pid", "seed", "log")]
        self._run("munged", "-F", "-f", f"-S{socket}", f"--key-file={key}", "--num-threads=2", *files)
        self._wait(socket.exists)
        self._run("slurmctld", "-D", "-i")
        self._run("slurmd", "-D", "-N", _NODE)
        self._wait(lambda: self.ask("sinfo", "-h", "-o", "%T").strip() == "idle")

    def _config(self, socket: Path) -> str:
        folder = self._folder
        settings = {
            "ClusterName": "test",
            "SlurmctldHost": f"{platform.node()}(127.0.0.1)",
            "SlurmUser": "root",
            "SlurmctldPort": free_port(),
            "SlurmdPort": free_port(),
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={socket}",
            "CryptoType": "crypto/munge",
            "StateSaveLocation": folder / "state",
            "SlurmdSpoolDir": folder / "spool",
            "SlurmctldPidFile": folder / "slurmctld.pid",
            "SlurmdPidFile": folder / "slurmd.pid",
            "SlurmctldLogFile": folder / "slurmctld.log",
            "SlurmdLogFile": folder / "slurmd.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "SwitchType": "switch/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "SchedulerType": "sched/builtin",
            "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0",
            "ReturnToService": 2,
            "KillWait": 60,  # seconds from SIGTERM to SIGKILL; a loaded machine takes its time
            "InactiveLimit": 0,
            "MinJobAge": 600,
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        lines += [
            f"NodeName={_NODE} NodeHostname={platform.node()} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN",
            f"PartitionName=all Nodes={_NODE} Default=YES MaxTime=INFINITE State=UP",
        ]
        return "\n".join(lines) + "\n"

    def ask(self, *command: str) -> str:
        """Returns what a command of Slurm's prints; empty where it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout if done.returncode == 0 else ""

    def job(self, number: int | str) -> dict[str, str]:
        """Returns what the controller says of a job, or of an array's task."""
        told = self.ask("scontrol", "show", "job", "-o", str(number))
        return dict(part.split("=", 1) for part in told.split() if "=" in part)

    def start_again(self, number: int | str) -> None:
        """Lets a job that is queued again start in two seconds, where Slurm waits for two minutes.

        In the second in which its first start was ended, the node takes the second one's credential for the revoked
        one, and the job fails.
        """
        self.until(number, "PENDING", within=_START_S)
        self.ask("scontrol", "update", f"jobid={number}", "StartTime=now+2")

    def until(self, number: int | str, state: str, within: float) -> None:
        """Waits until a job is in a state.

        Raises:
          AssertionError: it ended in another one, or time is over.
        """
        deadline = time.monotonic() + within
        while (found := self.job(number)["JobState"]) != state:
            log = (self._folder / "slurmctld.log").read_text(errors="replace")[-1500:]
            assert found in ("PENDING", "RUNNING", "COMPLETING"), f"job {number} is {found}, not {state}:\n{log}"
            assert time.monotonic() < deadline, f"job {number} is still {found}, not {state}:\n{log}"
            time.sleep(0.05)

    def submit(self, script: Path, *options: str, folder: Path) -> int:
        """Submits a script and returns the job's number; what it prints goes to `job.log` of a folder."""
        where = (f"--chdir={folder}", f"--output={folder / 'job.log'}", "--open-mode=append")
        return int(self.ask("sbatch", "--parsable", *where, *options, str(script)).strip())

    def _run(self, program: str, *arguments: str) -> None:
        with (self._folder / f"{program}.out").open("wb") as out:
            found = shutil.which(program, path=_PATH)
            assert found is not None
            with_us = ("setpriv", "--pdeathsig", "TERM")  # a test that is killed can't end what it started
            started = subprocess.Popen(
                [*with_us, found, *arguments], env=self.environment, stdout=out, stderr=out, start_new_session=True
            )
        self._daemons.append(started)

    def _wait(self, ready: object) -> None:
        until = time.monotonic() + _START_S
        while not ready():  # type: ignore[operator]
            broken = [one.args for one in self._daemons if one.poll() is not None]
            if broken or time.monotonic() > until:
                logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self._folder.glob("*.[lo]*"))
                raise AssertionError(f"Slurm did not start ({broken}):\n{logs}")
            time.sleep(0.1)

    def close(self) -> None:
        """Ends the jobs, then the daemons."""
        if len(self._daemons) > 1 and self._daemons[1].poll() is None:
            self.ask("scancel", "--signal=KILL", "--full", "--user=root")
            self.ask("scancel", "--user=root")
            until = time.monotonic() + 10
            while self.ask("squeue", "-h") and time.monotonic() < until:
                time.sleep(0.1)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
