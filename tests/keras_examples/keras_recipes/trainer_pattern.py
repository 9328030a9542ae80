"""Digits by a trained step of one's own."""

from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Trainer pattern",
    trains="Adam; cross-entropy; accuracy; a train_step of its own",
    data="images()",
    overrides=["optimizer=adam", "task.classes=4"],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(num_classes),
        ]
    )
