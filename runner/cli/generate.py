"""Text that a run's model writes after a prompt, printed and written to a file."""

from __future__ import annotations

import json

from omegaconf import DictConfig

from runner.cluster.team import current
from runner.config.convert import resolved
from runner.config.schema import RunConfig
from runner.console import Console
from runner.engine import devices
from runner.errors import invalid
from runner.host import stages
from runner.host.outputs import required
from runner.task import registry as tasks
from runner.task.base import DataSpec
from runner.task.language_model import LanguageModel
from runner.train import samples
from runner.train.record import with_config
from runner.train.saved import open_saved, prepared, restored

_TEXT = "generate.json"
_PROMPT = "generate.prompt"


def run(config: RunConfig, composed: DictConfig) -> None:
    """Continues a prompt with a run's language model, and prints the text; raises as training does.

    A ConfigError also says that there is no such run or checkpoint, or that the prompt can't be continued.
    """
    console = Console()
    team = current()
    options = config.generate
    if options.prompt is None:
        problem = "runner.generate needs the start of a text"
        raise invalid(_PROMPT, None, problem=problem, fix='set prompt="Once upon a time"')
    saved = open_saved(config.run, config.trainer.checkpoint, "runner.generate")
    if not tasks.entry(config.task).samples_text:
        problem = f"is a run with task={config.task.name}, but runner.generate needs a language model"
        raise invalid("run", config.run, problem=problem, fix="name a run with task=language_model")
    # Before an engine loads, because that hides GPUs from its process.
    device_lines = devices.device_lines(config, composed)
    folder = with_config(resolved(composed, config.mesh, config.tracking.uri))
    seed = options.seed
    if seed is None:
        seed = config.trainer.seed
    _, task = prepared(config, saved)
    assert isinstance(task, LanguageModel), "only its entry has `samples_text`"
    # All checks come before the model is built, which takes the time.
    encoded = task.encode_prompts([options.prompt], _PROMPT, options.tokens)
    engine = restored(config, saved, DataSpec(task.arrays, task), folder / "runner.log")
    # Every process takes part in this, and process 0 reports.
    with stages.stage("generating"):
        ask, multiple = samples.asking(engine)
        (text,) = task.generate(ask, encoded, options.tokens, [options.temperature], seed, multiple=multiple)
    if not team.is_first:
        return
    console.print_lines(device_lines)
    console.print(text.expandtabs(), soft_wrap=True)
    content = {"prompt": options.prompt, "text": text}
    with required(folder):
        (folder / _TEXT).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    console.print(f"files: {folder}", soft_wrap=True)
