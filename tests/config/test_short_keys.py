from __future__ import annotations

import pytest

from runner.cli import command_line
from runner.cli.command_line import arranged
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("module", "short", "full", "fix"),
    [
        ("runner.advise", "devices=64", "advise.devices=64", "set mesh=batch8"),
        ("runner.verify", "step=9", "replay.step=9", "set trainer.steps=100"),
        ("runner.generate", "prompt=Once", "generate.prompt=Once", "set task.sample.prompt"),
    ],
)
def test_a_command_has_its_own_short_keys_and_rejects_those_of_others(
    module: str, short: str, full: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "command_module", lambda: module)
    assert arranged([short]) == [full]
    assert arranged([full]) == [full]
    for other in ("runner", "runner.plan"):
        monkeypatch.setattr(command_line, "command_module", lambda other=other: other)
        assert arranged([full]) == [full]
        with pytest.raises(ConfigError, match=f"only python -m {module} has this key; {fix}"):
            arranged([short])
