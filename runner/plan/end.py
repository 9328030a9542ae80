"""What the plan command does when all is done."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from runner.host.late import late
from runner.sweep import state

if TYPE_CHECKING:
    from runner.plan import main
else:
    main = late("runner.plan.main")


def end(code: int) -> int:
    """Compares a sweep's plans; where TensorFlow was loaded ends without taking it to pieces, most of a second.

    Args:
      code: to exit with.

    Returns:
      The same.
    """
    sweep = state.started()
    if sweep is not None and sweep.ledger.jobs:
        main.compare(sweep)
    if "tensorflow" not in sys.modules:
        return code
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
