"""The single device's side of the DTensor engine: plain tf_keras with its stock optimizer, no DTensor.

Shapes: B examples a batch, HWD an image's height, width and channels, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner import mesh
from runner.config.errors import ConfigError
from runner.engine.base import Array
from runner.engine.dtensor.core import ModuleFactory
from runner.engine.dtensor.keras_adapter import ModelFactory
from runner.model import scope
from runner.optim import rules as optimizer
from runner.verify.reference import Reference
from runner.verify.request import Request


def _source(request: Request) -> ModelFactory | ModuleFactory:
    """Returns where the engine's models come from; the stock optimizer is tf_keras's for modules too."""
    factory = ModuleFactory if request.config.engine.name == "core_dtensor" else ModelFactory
    return factory(request.config.model, request.data, request.config.trainer.seed)


class KerasReference(Reference):
    """A plain tf_keras model; see `Reference` for what the methods promise."""

    def __init__(self, request: Request) -> None:
        """Builds the model from the config's seed.

        Raises:
          ConfigError: the builder fails.
        """
        import tensorflow as tf
        import tf_keras

        super().__init__(request)
        tf_keras.backend.experimental.enable_tf_random_generator()
        self._device = f"/{mesh.device_kind(request.config.mesh).upper()}:0"
        with tf.device(self._device):
            source = _source(request)
            self._model = source.plain()
        self._variables = source.variables(self._model)
        trainable = {id(variable) for variable in self._model.trainable_variables}
        self._trained = {path: held for path, held in self._variables.items() if id(held) in trainable}
        self.initial = self.variables()
        self._gradients = tf.function(self._traced_gradients)

    def positions(self) -> int:
        """Returns the most positions of a layer, 1 where no output tells."""
        return max((_positions(layer) for layer in self._model.submodules), default=1)

    def reset(self) -> None:
        """Takes the initial weights and a new stock optimizer."""
        import tensorflow as tf

        held = list(self._trained.values())
        with tf.device(self._device):
            for path, value in self.initial.items():
                self._variables[path].assign(value)
            stock = optimizer.reference(self._request.config.optimizer, self._request.total_steps)
            stock.build(held)
        self._stock = stock
        self._apply = tf.function(lambda gradients: stock.apply_gradients(zip(gradients, held, strict=True)))

    def weights(self) -> dict[str, Array]:
        """Returns the trainable variables by canonical path."""
        return {path: variable.numpy() for path, variable in self._trained.items()}

    def assign(self, weights: Mapping[str, Array]) -> None:
        """Sets the trainable variables."""
        for path, variable in self._trained.items():
            variable.assign(weights[path])

    def gradients(
        self, x_bhwd: Array, y_b: Array, share_b: Array, drawn: int, share: float
    ) -> tuple[float, dict[str, Array]]:
        """Returns a micro-batch's loss and its gradients.

        Raises:
          ConfigError: the loss does not depend on a trainable variable.
        """
        import tensorflow as tf

        with tf.device(self._device):
            arguments = (
                tf.constant(argument) for argument in (x_bhwd, y_b, share_b, np.int32(drawn), np.float32(share))
            )
            loss, found = self._gradients(*arguments)
        return float(loss), {path: gradient.numpy() for path, gradient in zip(self._trained, found, strict=True)}

    def _traced_gradients(self, x_bhwd: Any, y_b: Any, share_b: Any, drawn: Any, share: Any) -> tuple[Any, list[Any]]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            logits_bc = tf.cast(self._forward(x_bhwd, drawn), tf.float32)
            loss_b = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_b, logits=logits_bc)
            loss = tf.reduce_sum(loss_b * share_b) + share * tf.add_n([*self._model.losses, tf.constant(0.0)])
        gradients = tape.gradient(loss, list(self._trained.values()))
        for path, gradient in zip(self._trained, gradients, strict=True):
            if gradient is None:
                raise ConfigError(
                    f"model._target_={self._request.config.model.target} is refused: the loss does not depend on "
                    f"trainable variable {path}; use it or make it trainable=False"
                )
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _forward(self, x_bhwd: Any, drawn: Any) -> Any:
        """The training pass, in which dropout draws the masks of this micro-batch."""
        with scope.enter(scope.Scope(self._request.config.trainer.seed, drawn)):
            return self._model(x_bhwd, training=True)

    def apply(self, gradients: Mapping[str, Array]) -> None:
        """Lets the stock optimizer update the weights."""
        import tensorflow as tf

        with tf.device(self._device):
            self._apply([tf.constant(gradients[path]) for path in self._trained])

    def variables(self) -> dict[str, Array]:
        """Returns every variable by canonical path."""
        return {path: variable.numpy() for path, variable in self._variables.items()}

    def slots(self, attribute: str) -> dict[str, Array]:
        """Returns what the stock optimizer keeps."""
        held = getattr(self._stock, attribute)
        return {path: variable.numpy() for path, variable in zip(self._trained, held, strict=False)}


def _positions(layer: Any) -> int:
    """Returns to how many positions of an example a layer applies its weights; 1 where its output does not tell."""
    try:
        shape = layer.output_shape
    except (AttributeError, RuntimeError):
        return 1
    dims = shape[1:-1] if isinstance(shape, tuple) and layer.weights else ()
    return math.prod(dim for dim in dims if isinstance(dim, int))
