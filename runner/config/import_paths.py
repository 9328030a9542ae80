"""The import paths that a config names: whatever they lead to runs in the program's own process."""

from __future__ import annotations

from runner.config.schema import RunConfig


def import_paths(config: RunConfig) -> list[str]:
    """Returns what a run calls: builder of the model, then data source, augmentation, loss and metrics."""
    return [path for path in (config.model.target, *before_the_model(config)) if path]


def before_the_model(config: RunConfig) -> list[str]:
    """Returns what is called before an engine is made: data source, augmentation, loss and metrics."""
    named = [config.dataset.target, config.dataset.builder or ""]
    named += [step.target for step in config.dataset.augment]
    # As in other groups, `target` (`_target_` in YAML) is a user's function; then all other strings are functions too.
    if "target" in config.task.options:
        for value in config.task.options.values():
            if isinstance(value, str):
                named.append(value)
            elif isinstance(value, list):
                named += value
    return [path for path in named if path]
