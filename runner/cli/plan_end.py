"""The end of the plan command: compares a sweep's plans and exits fast."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from runner.cli.sweep import state
from runner.host.late import late

if TYPE_CHECKING:
    from runner.cli import plan as main
else:
    main = late("runner.cli.plan")


def end(code: int) -> int:
    """Compares a sweep's plans, then exits.

    If TensorFlow was loaded, the process exits without tearing it down, which would take most of a second.

    Returns:
      The same code, if TensorFlow was not loaded.
    """
    sweep = state.started()
    if sweep is not None and sweep.ledger.jobs:
        main.compare(sweep.ledger.jobs)
    if "tensorflow" not in sys.modules:
        return code
    # `os._exit` runs no exit handlers and flushes no buffers, so both are done here.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
