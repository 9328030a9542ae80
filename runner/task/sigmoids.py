"""What tasks share whose outputs are a sigmoid each, of labels that are 0 or 1."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from runner.arrays import Arrays, Tensor
from runner.data.base import Array, ArraySpec
from runner.task import probabilities
from runner.task.keras_metrics import Compared
from runner.task.supervised import Roles, Supervised, is_real


class OfSigmoids(Supervised):
    """A task of L labels per example that are each 0 or 1. The model returns (B, L): logits, or probabilities."""

    def __init__(
        self,
        array_roles: Roles,
        arrays: Mapping[str, ArraySpec],
        metrics: Mapping[str, str],
        *,
        from_logits: bool,
    ) -> None:
        """Sets what all such tasks have; see `Supervised`."""
        super().__init__(array_roles, arrays, metrics)
        self._from_logits = from_logits

    @abstractmethod
    def _labels(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, L)."""

    def _as_logits(self, ops: Arrays, outputs: Tensor) -> Tensor:
        """Returns the logits (B, L) of the model's outputs."""
        if self._from_logits:
            return outputs
        return probabilities.logits_of_sigmoid(ops, outputs)

    def _of_keras(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Compared:
        """Returns what Keras's metrics compare: probabilities and labels."""
        return Compared(
            target=self._labels(ops, batch),
            prediction=ops.sigmoid(outputs) if self._from_logits else outputs,
            weight=ops.cast(is_real(ops, batch), "float32"),
            logits=outputs if self._from_logits else None,
            example_weight=self._example_weights(ops, batch),
        )

    def predictions(self, ops: Arrays, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the logits, if the model returns them, and the probabilities, (B, L)."""
        if not self._from_logits:
            return {"probabilities": outputs}
        return {"logits": outputs, "probabilities": ops.sigmoid(outputs)}

    def warnings(self, outputs: Array) -> list[str]:
        """Returns a warning if the outputs look like probabilities and should be logits, or the reverse."""
        return probabilities.sigmoid_warnings(outputs, from_logits=self._from_logits)
