"""Adds figures, files and models to a run that has ended.

Its status and times don't change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.config.schema import TrackingConfig
from runner.host import stages
from runner.host.late import late
from runner.host.paths import project_root
from runner.tracking.base import Attachment
from runner.tracking.location import tracking_uri

if TYPE_CHECKING:
    from runner.tracking import attachment
else:
    attachment = late("runner.tracking.attachment")


def attach(config: TrackingConfig, run_id: str | None) -> Attachment:
    """Opens a recorded run.

    Args:
      config: the `tracking` group.
      run_id: the run's id in the store; None for a run that was not tracked.

    Raises:
      TrackingError: the store can't be used, or has no such run; one line.
    """
    if config.name == "none" or run_id is None:
        return Attachment()
    with stages.stage("opening the run's record in MLflow"):
        return attachment.open_run(tracking_uri(config.uri, project_root()), config.experiment, run_id)
