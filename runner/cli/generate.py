"""Text that a run's model writes after prompts, printed and written to a file."""

from __future__ import annotations

import json

from omegaconf import DictConfig

from runner.cluster.team import current
from runner.config.convert import resolved
from runner.config.schema import GenerateConfig, RunConfig
from runner.console import Console
from runner.engine import devices
from runner.errors import invalid
from runner.host import stages
from runner.host.outputs import required
from runner.host.signals import heard
from runner.task import registry as tasks
from runner.task.base import DataSpec
from runner.task.language_model import LanguageModel
from runner.train import samples
from runner.train.record import with_config
from runner.train.saved import open_saved, prepared, restored

_TEXTS = "generate.json"


def run(config: RunConfig, composed: DictConfig) -> None:
    """Continues each prompt and prints the texts.

    Raises:
      ConfigError: there is no such run or checkpoint, it is of another model or no language model, or a prompt can't
        be continued.
      DataError, EngineError, Interrupted: as in training.
    """
    console = Console()
    team = current()
    options = config.generate
    key, prompts = prompts_of(options)
    saved = open_saved(config, "runner.generate")
    if not tasks.entry(config.task).samples_text:
        problem = f"is a run with task={config.task.name}, but runner.generate needs a language model"
        raise invalid("run", config.run, problem=problem, fix="name a run with task=language_model")
    # Before an engine loads, because that hides GPUs from its process.
    device_lines = devices.device_lines(config, composed)
    folder = with_config(resolved(composed, config.mesh, config.tracking.uri))
    temperature = 0.0 if options.greedy else options.temperature
    seed = config.trainer.seed if options.seed is None else options.seed
    with heard():
        _, task = prepared(config, saved)
        assert isinstance(task, LanguageModel), "only its entry has `samples_text`"
        # All checks come before the model is built, which takes the time.
        encoded = task.encode_prompts(prompts, key, options.tokens)
        engine = restored(config, saved, DataSpec(task.arrays, task), folder / "runner.log")
        # Every process takes part in this, and process 0 reports.
        with stages.stage("generating"):
            ask, multiple = samples.asking(engine)
            temperatures = [temperature] * len(encoded)
            texts = task.generate(ask, encoded, options.tokens, temperatures, seed, multiple=multiple)
    if not team.is_first:
        return
    console.print_lines(device_lines)
    for number, text in enumerate(texts):
        if len(texts) > 1:
            console.print(f"--- {number + 1} of {len(texts)}", soft_wrap=True)
        console.print(text.expandtabs(), soft_wrap=True, highlight=False)
    content = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
    path = folder / _TEXTS
    with required(folder):
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    console.print(f"files: {folder}", soft_wrap=True)


def prompts_of(config: GenerateConfig) -> tuple[str, list[str]]:
    """Returns the config key that the prompts come from, and the prompts.

    Raises:
      ConfigError: there is no prompt, or there are two sources of prompts.
    """
    key = "generate.prompt"
    if config.prompt is not None and config.prompts:
        raise invalid(key, config.prompt, problem="can't be combined with generate.prompts", fix="set one of them")
    if config.prompt is not None:
        return key, [config.prompt]
    if not config.prompts:
        fix = 'set prompt="Once upon a time" or generate.prompts'
        raise invalid(key, None, problem="runner.generate needs the start of a text", fix=fix)
    return "generate.prompts", list(config.prompts)
