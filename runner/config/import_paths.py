"""Import paths of user code in a config, which runs in the program's own process."""

from __future__ import annotations

from runner.config.options import output_tasks
from runner.config.schema import RunConfig


def import_paths(config: RunConfig) -> list[str]:
    """Returns the import paths of model builder, optimizer, data source, augmentation, loss, metrics and schedule."""
    paths = [config.model.target, config.optimizer.target, config.dataset.target]
    # The parts of a mixture are mappings as typed. They have no augmentation of their own.
    for part in config.dataset.parts:
        paths.append(part.get("_target_") or "")
    paths += [step.target for step in config.dataset.augment]
    # As in other groups, `target` (`_target_` in YAML) is a user's function; then all other strings are functions too.
    for task in (config.task, *output_tasks(config.task).values()):
        if "target" not in task.options:
            continue
        for value in task.options.values():
            if isinstance(value, str):
                paths.append(value)
            elif isinstance(value, list):
                paths += value
    paths.append(config.optimizer.schedule.target)
    # Built-in parts have an empty path, or one of this package.
    return [path for path in paths if path and not path.startswith("runner.")]
