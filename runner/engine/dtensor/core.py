"""The engine `core_dtensor`: tf.Modules of DVariables on a DTensor mesh, without Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.errors import ConfigError
from runner.config.schema import ModelConfig, RunConfig
from runner.engine.base import IMAGES, Array, DataSpec, LayerInput, LayerOutput
from runner.engine.dtensor.adapter import Source
from runner.engine.dtensor.engine import DTensorEngine
from runner.model import target
from runner.model.builder import call as build_model
from runner.model.builder import check_outputs, check_paths


class CoreDTensorEngine(DTensorEngine):
    """TensorFlow Core on DTensor."""

    def _make_source(self) -> Source:
        return ModuleFactory(self._config.model, self._data, self._config.trainer.seed)


class ModuleFactory:
    """Calls a config's builder without a Keras, for a module on one device and for one on a mesh."""

    def __init__(self, config: ModelConfig, data: DataSpec, seed: int) -> None:
        self._config, self._data, self._seed = config, data, seed
        self._builder = target.load(config.target)
        self.lets_users_place = not target.is_own(config)

    def plain(self) -> Any:
        """Returns the module on one device.

        Raises:
          ConfigError: the builder raised, or returned something that is no module with named layers.
        """
        return self._call({})

    def on_mesh(self, mesh: Any, layouts: Mapping[str, Any]) -> Any:
        """Returns the module with every variable made under its layout."""
        del mesh
        return self._call(layouts)

    def variables(self, model: Any) -> dict[str, Any]:
        """Returns canonical path to variable: the layers' names and the attributes that hold their variables."""
        import tensorflow as tf

        found = {}
        for layer in model.layers:
            for name in vars(layer):
                held = getattr(layer, name)
                if isinstance(held, tf.Variable):
                    found[f"{layer.name}/{name}"] = held
        return found

    def check(self, model: Any, config: RunConfig) -> None:
        """Checks that a module gives one logit a class, and its layers' names.

        Raises:
          ConfigError: it gives something else, or a layer has a name that is taken.
        """
        check_paths(self.variables(model), config.model)
        check_outputs(self.layer_outputs(1)[-1].shape, self._data.num_classes, config.model)

    def whole(self, model: Any) -> set[str]:
        """Returns nothing: a dense layer computes with parts of its kernel."""
        del model
        return set()

    def layer_outputs(self, batch: int) -> list[LayerOutput]:
        """Returns what every layer gives for a batch."""
        found: list[LayerOutput] = []
        for layer in self.plain().layers:
            inputs, outputs = (int(size) for size in layer.kernel.shape)
            taken = LayerInput(found[-1].layer if found else IMAGES, (batch, inputs))
            found.append(LayerOutput(layer.name, type(layer).__name__, (batch, outputs), "float32", (taken,)))
        return found

    def exported(self, values: Mapping[str, Array]) -> Any:
        """Returns the same network of tf_keras's layers, with these weights."""
        import tf_keras

        from runner.engine.dtensor.keras_adapter import named_variables

        model = self._build(tf_keras, {})
        for path, variable in named_variables(model).items():
            variable.assign(values[path])
        return model

    def _call(self, layouts: Mapping[str, Any]) -> Any:
        import tensorflow as tf

        model = self._build(None, layouts)
        if not isinstance(model, tf.Module) or not hasattr(model, "layers"):
            raise ConfigError(
                f"model._target_={self._config.target} is refused: engine=core_dtensor trains a tf.Module with "
                f"`layers`, this builder returned {type(model).__name__}; set model=mlp_core or engine=keras_dtensor"
            )
        return model

    def _build(self, keras: Any, layouts: Mapping[str, Any]) -> Any:
        return build_model(
            self._builder,
            self._config,
            mend="set model=mlp_core, or engine=keras_dtensor for a builder of Keras models",
            keras=keras,
            input_shape=self._data.input_shape,
            num_classes=self._data.num_classes,
            layouts=layouts,
            seed=self._seed,
        )
