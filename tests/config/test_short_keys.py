import pytest

from runner.cli import command_line
from runner.cli.command_line import arranged
from runner.config.compose import compose
from runner.config.short_keys import check_read
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


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("evaluate.split=train", "evaluate.split=train: only python -m runner.evaluate reads it; remove eval"),
        ("+generate.prompt=a", "generate.prompt=a: only python -m runner.generate reads it"),
        ("replay.step=3", "replay.step=3: only python -m runner.verify reads it"),
        ("verify.steps=3", "verify.steps=3: a run reads it with trainer.verify_first=true only"),
    ],
)
def test_a_typed_key_that_the_command_ignores_is_rejected(typed: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_read(["mesh=single", typed], "runner", verifies=False)
    reader = said.rpartition("python -m ")[2].partition(" ")[0].partition(";")[0]
    command = reader if "only python" in said else "runner"
    check_read([typed], command, verifies=True)
    # A user's program may call any command.
    check_read(["evaluate.split=train", "verify.steps=3"], "", verifies=False)
    # Hydra's own groups and options are not keys of a command.
    check_read(["evaluate=default", "tracking=none", "hydra.run.dir=a"], "runner", verifies=False)


def test_a_published_size_fills_the_keys_of_the_typed_model_and_its_vocabulary() -> None:
    typed = ["model=gpt", "model.size=llama3_8b", "model.depth=2", "task=language_model", "dataset=synthetic"]
    composed = compose(arranged(typed))
    assert (composed.model.dim, composed.model.depth, composed.task.vocabulary) == (4096, 2, 128256)
    assert arranged(["model=mine", "model.size=3"]) == ["model=mine", "model.size=3"]
    for wrong, said in (
        ("model=gpt", "llama4: must be one of .*gemma_2b"),
        ("model=mlp", "gpt2: needs model=gpt or "),
    ):
        with pytest.raises(ConfigError, match=f"^model.size={said}"):
            arranged([wrong, f"model.size={said.partition(':')[0]}"])
