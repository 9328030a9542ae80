"""The engine `keras_dtensor`: a tf_keras model on a DTensor mesh."""

from __future__ import annotations

from runner.engine.dtensor.adapter import Source
from runner.engine.dtensor.engine import DTensorEngine


class KerasDTensorEngine(DTensorEngine):
    """tf_keras on DTensor."""

    def _make_source(self) -> Source:
        import tf_keras

        from runner.engine.dtensor.keras_adapter import ModelFactory

        tf_keras.backend.experimental.enable_tf_random_generator()
        return ModelFactory(self._config.model, self._data, self._config.trainer.seed, blank=self._planning)
