"""Teachers that are exported before a run starts: which failures of an export are final."""

from __future__ import annotations

import subprocess

import pytest

from runner.cli import teachers
from runner.config.schema import RunConfig, TaskConfig
from runner.errors import EXIT_REFUSED, ConfigError, PassingError


@pytest.mark.parametrize(("code", "may_pass"), [(EXIT_REFUSED, False), (1, True), (-9, True)])
def test_only_an_export_with_an_invalid_config_fails_for_good(
    monkeypatch: pytest.MonkeyPatch, code: int, may_pass: bool
) -> None:
    def export(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, "", "error: no memory\n")

    monkeypatch.setattr(teachers.subprocess, "run", export)
    monkeypatch.setattr(teachers.teachers, "is_unexported", lambda _: True)
    config = RunConfig(task=TaskConfig("distillation", teachers={"large": "aaaa"}))
    with pytest.raises(ConfigError, match=r"task.teachers.large=aaaa: it can't be exported \(no memory\)") as raised:
        teachers.export_missing(config)
    assert isinstance(raised.value, PassingError) == may_pass
