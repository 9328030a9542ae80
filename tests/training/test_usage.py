"""What processes take of their machines, as process 0 logs it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from runner.host.gpus import Gpus
from runner.processes.team import Team
from runner.training.usage import ProcessUsage


class Others(Team):
    """Process 0 of three, and what the others tell it next."""

    count = 3

    def __init__(self) -> None:
        self.told: dict[int, Mapping[str, float]] = {}

    def reported(self) -> dict[int, Mapping[str, float]]:
        found, self.told = self.told, {}
        return found


class Second(Team):
    """Process 1, and what it tells process 0."""

    index, count = 1, 2

    def __init__(self) -> None:
        self.said: list[Mapping[str, float]] = []

    def report(self, usage: Mapping[str, float]) -> None:
        self.said.append(usage)


class Log:
    """What was logged."""

    def __init__(self) -> None:
        self.points: list[tuple[int, str, float]] = []

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        self.points += [(step, key, value) for key, value in values.items()]

    def steps(self, process: int) -> list[int]:
        return [step for step, key, _ in self.points if key == f"system/process-{process}/memory_mb"]


def test_a_single_process_logs_its_cpu_and_memory() -> None:
    log, held = Log(), np.ones(64 << 20, np.uint8)  # 67 MB, touched
    usage = ProcessUsage(Team(), log)
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    usage.sample(3)
    found = {key: value for _, key, value in log.points}
    names = ("cpu_percent", "memory_mb")
    assert set(found) == {f"system/process-0/{name}" for name in names}
    assert found["system/process-0/cpu_percent"] > 0
    assert held.nbytes / 1e6 < found["system/process-0/memory_mb"] < 1e5


def test_usage_is_measured_every_few_seconds_and_not_at_every_call() -> None:
    log = Log()
    usage = ProcessUsage(Team(), log, every_s=0.2)
    begun, step = time.monotonic(), 0
    while len(log.steps(0)) < 3:
        step += 1
        usage.sample(step)
        assert step > 1 or log.steps(0) == [1], "a run may be short"
        time.sleep(0.001)
    assert time.monotonic() - begun >= 0.4
    assert step > 3


def test_reports_of_other_processes_are_logged_under_their_index_once_per_step() -> None:
    team, log = Others(), Log()
    usage = ProcessUsage(team, log, every_s=1000.0)
    usage.sample(1)
    for step, told in [(2, 10.0), (2, 11.0), (4, 12.0)]:
        team.told = {2: {"cpu_percent": 1.0, "memory_mb": told}}
        usage.sample(step)
    team.told = {1: {"cpu_percent": 1.0, "memory_mb": 20.0}, 2: {"cpu_percent": 1.0, "memory_mb": 13.0}}
    usage.finish(5)
    memory = [(step, key[15:16], value) for step, key, value in log.points if key.endswith("memory_mb") and step > 1]
    assert sorted(memory) == [(2, "2", 10.0), (4, "2", 12.0), (5, "1", 20.0), (5, "2", 13.0)]
    assert log.steps(0) == [1]


def test_other_processes_report_to_process_0_and_log_nothing() -> None:
    team, log = Second(), Log()
    usage = ProcessUsage(team, log, every_s=1000.0)
    usage.sample(1)
    usage.sample(2)
    usage.finish(3)
    assert [sorted(each) for each in team.said] == [["cpu_percent", "memory_mb"]]
    assert log.points == []


NVML = SimpleNamespace(
    nvmlInit=lambda: None,
    nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50 + handle),
    nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=(1 + handle) * 10**9),
)


def test_only_visible_gpus_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NVML)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    log = Log()
    ProcessUsage(Team(), log, gpus=Gpus()).sample(3)
    found = {key.rpartition("/")[2]: value for _, key, value in log.points}
    assert (found["gpu-0_percent"], found["gpu-0_memory_mb"]) == (51.0, 2000.0)
    assert "gpu-1_percent" not in found
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert Gpus().measure()["gpu-1_percent"] == 51.0


def test_without_the_package_or_the_driver_no_gpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus().measure() == {}
