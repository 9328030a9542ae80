"""Default learning rates that depend on the model, as conf/optimizer refers to them."""

from __future__ import annotations

# TensorFlow's tutorial on DTensor and Keras trains its 784-128-10 network with Adam at 0.01, and so do our figures.
_TUTORIAL_BUILDERS = ("runner.model.mlp.", "runner.model.core.")
_TUTORIAL_RATE = 0.01
# The default of Keras's Adam. At ten times that rate, convolutional networks and transformers often don't learn.
_KERAS_RATE = 0.001


def adam_learning_rate(builder: str) -> float:
    """Returns the default learning rate of Adam for a model.

    Args:
      builder: import path of the model's builder, `model._target_`.

    Example:
      >>> adam_learning_rate("runner.model.mlp.sequential"), adam_learning_rate("runner.model.vit.build")
      (0.01, 0.001)
    """
    return _TUTORIAL_RATE if str(builder).startswith(_TUTORIAL_BUILDERS) else _KERAS_RATE
