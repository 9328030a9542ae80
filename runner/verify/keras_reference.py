"""The single device's side of the DTensor engines: plain tf_keras with its stock optimizer, no DTensor.

Imports TensorFlow, whose environment `runner.engine.registry.prepare` has set. Shapes: B examples per batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
import tf_keras

from runner import arrays
from runner.arrays import Tensor
from runner.data.base import Array
from runner.engine.dtensor import operations
from runner.engine.dtensor.adapters import make_adapter
from runner.engine.dtensor.adapters.paths import named_variables
from runner.engine.optim import groups
from runner.errors import ConfigError
from runner.layout import mesh
from runner.model import scope, target
from runner.verify.meshproof.by_path import chosen
from runner.verify.reference import GradientReference, Inputs, on_host
from runner.verify.request import Request
from runner.verify.stock import stock_parts


class KerasReference(GradientReference):
    """A plain tf_keras model or tf.Module; see the base classes for the methods.

    Its layers are tf_keras's own, and so is the arithmetic of a step. Only the masks of random layers are handed in.
    """

    def __init__(self, request: Request) -> None:
        """Builds the model from the config's seed; a ConfigError if the builder fails."""
        super().__init__(request)
        tf_keras.backend.experimental.enable_tf_random_generator()
        self._ops = arrays.of(tf)
        self._device = f"/{mesh.device_kind(request.config.mesh).upper()}:0"
        with tf.device(self._device):
            config = request.config
            adapter = make_adapter(config.engine.name, config.model, request.data, config.trainer.seed)
            self._model = adapter.plain()
            adapter.check(self._model, pads=request.config.dataset.remainder == "pad")
            self._by_path = adapter.variables(self._model)
            if not isinstance(self._model, tf_keras.Model) and target.is_own(request.config.model):
                # The builders of the runner's own modules (engine `core_dtensor`) have counterparts in tf_keras's
                # layers, which a reference uses in their place.
                self._model = adapter.exported(on_host(self._by_path)).keras
                self._by_path = named_variables(self._model)
        trainable = set(map(id, self._model.trainable_variables))
        self._trainable = {path: variable for path, variable in self._by_path.items() if id(variable) in trainable}
        self.initial = on_host(self._by_path)
        self._gradients_program = tf.function(self._traced_gradients)
        self._evaluate_program = tf.function(self._traced_evaluation)
        with tf.device(self._device):
            optimizer = request.config.optimizer
            self.settings = groups.settings(optimizer, list(self._trainable))
            self.parts = stock_parts(optimizer, request.total_steps, tf_keras, self.settings, self._trainable)
        # A Python number is a constant of a program, so each stock optimizer has one.
        self._apply = tf.function(self._traced_apply)

    def _traced_apply(self, number: int, gradients: list[Tensor]) -> None:
        part = self.parts[number]
        variables = chosen(self._trainable, part.paths)
        part.optimizer.apply_gradients(zip(gradients, variables.values(), strict=True))

    def _positions(self) -> int:
        return max(map(_positions, self._model.submodules), default=1)

    def _compute_dtypes(self) -> Iterable[str | None]:
        for layer in self._model.submodules:
            yield getattr(layer, "compute_dtype", None)

    def _gradients(
        self, inputs: Inputs, batch: Mapping[str, Array], share_b: Array, microstep: int, share: float
    ) -> tuple[float, dict[str, Array]]:
        """Returns the loss and its gradients; a ConfigError if it does not depend on a trainable variable."""
        with tf.device(self._device):
            # As constants, since a plain number would be a part of the program, and another one trace it again.
            arguments = inputs, dict(batch), share_b, np.int32(microstep), np.float32(share)
            loss, gradients = self._gradients_program(*tf.nest.map_structure(tf.constant, arguments))
        return float(loss), on_host(dict(zip(self._trainable, gradients, strict=True)))

    def _traced_gradients(
        self, inputs: Tensor, batch: Mapping[str, Tensor], share_b: Tensor, microstep: Tensor, share: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        with tf.GradientTape() as tape:
            entered = scope.enter(scope.Scope(self._request.config.trainer.seed, microstep))
            with entered, operations.masks_from_scope(self._model):
                outputs = self._model(inputs, training=True)
            outputs = _in_float32(outputs)
            loss_b = self._task.loss(self._ops, outputs, batch)
            # An example of weight 0 may have a loss of NaN, which times 0 is NaN.
            loss_b = tf.where(share_b > 0, loss_b, tf.zeros_like(loss_b)) * share_b
            loss = tf.reduce_sum(loss_b) + share * sum(self._penalties())
        gradients = tape.gradient(loss, list(self._trainable.values()))
        for path, gradient in zip(self._trainable, gradients, strict=True):
            if gradient is None:
                raise ConfigError(
                    f"model._target_={self._request.config.model.target}: the loss does not depend on "
                    f"trainable variable {path}; use it or make it trainable=False"
                )
        return loss, list(map(tf.convert_to_tensor, gradients))

    def _penalties(self) -> list[Tensor]:
        return [tf.cast(tf.reduce_sum(penalty), tf.float32) for penalty in self._model.losses]

    def _evaluate(self, inputs: Inputs, batch: Mapping[str, Array]) -> tuple[Array, dict[str, Array], float]:
        with tf.device(self._device):
            loss_b, totals, added = self._evaluate_program(*tf.nest.map_structure(tf.constant, (inputs, dict(batch))))
        return loss_b.numpy(), on_host(totals), float(added)

    def _traced_evaluation(
        self, inputs: Tensor, batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        outputs = _in_float32(self._model(inputs, training=False))
        added = tf.add_n([tf.constant(0.0), *self._penalties()])
        task = self._task.without_class_weights()
        return task.loss(self._ops, outputs, batch), task.totals(self._ops, outputs, batch), added

    def _apply_part(self, number: int, gradients: list[Array]) -> None:
        with tf.device(self._device):
            self._apply(number, list(map(tf.constant, gradients)))


def _in_float32(outputs: Tensor) -> Tensor:
    return tf.nest.map_structure(lambda output: tf.cast(output, tf.float32), outputs)


def _positions(layer: tf.Module) -> int:
    """Returns the number of positions of an example to which a layer applies its weights; 1 without output shape."""
    try:
        shape = layer.output_shape
    except (AttributeError, RuntimeError):
        return 1
    if not isinstance(shape, tuple) or not layer.weights:
        return 1
    return math.prod(dim for dim in shape[1:-1] if isinstance(dim, int))
