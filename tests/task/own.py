"""A user's losses and metrics, as they stand in a module of their own."""

from typing import Any

not_a_function = 3


def loss(ops: Any, outputs: Any, batch: Any) -> Any:
    """Mean absolute error, and 9 where an example is padding."""
    error = ops.mean(ops.abs(outputs - ops.expand_dims(batch["y"], -1)), axis=-1)
    return ops.where(ops.greater(batch["weight"], 0.0), error, 9.0)


def near(ops: Any, outputs: Any, batch: Any) -> Any:
    """Whether an output is within 0.5."""
    return ops.cast(ops.less(ops.abs(ops.squeeze(outputs, -1) - batch["y"]), 0.5), "float32")


def error(ops: Any, outputs: Any, batch: Any) -> Any:
    return ops.abs(ops.squeeze(outputs, -1) - batch["y"])


def of_two(ops: Any, outputs: Any) -> Any:
    return ops.sum(outputs)


def whole(ops: Any, outputs: Any, batch: Any) -> Any:
    del batch
    return ops.sum(outputs)


def one_for_all(ops: Any, outputs: Any, batch: Any) -> Any:
    del batch
    return ops.mean(outputs, axis=0)


def broken(ops: Any, outputs: Any, batch: Any) -> Any:
    del ops, outputs
    return batch["no such array"]


def b_loss(ops: Any, outputs: Any, batch: Any) -> Any:
    """A metric whose name may be that of another output's loss."""
    return error(ops, outputs, batch)
