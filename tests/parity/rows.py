"""All rows."""

from tests.parity import rows_layers, rows_training
from tests.parity.row import ROWS

__all__ = ["ROWS", "rows_layers", "rows_training"]
