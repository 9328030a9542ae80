"""Films, as features of their frames, by one block of attention."""

from tests.keras_examples.layers import encoder, positions
from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Video Classification with Transformers",
    trains="Adam; cross-entropy; accuracy; best checkpoint by loss",
    data="series(classes=3, length=12, channels=16)",
    overrides=["optimizer=adam", "trainer.checkpoint.best=eval/loss", "task.classes=3"],
    simplified=[
        "made features of frames in place of DenseNet's",
        "empty frames are not masked",
        "relu in place of gelu, and dropout after attention in place of inside",
    ],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    frames = keras.Input(input_shape)
    x = encoder(keras, positions(keras)(frames), heads=1, units=8)
    x = layers.Dropout(0.5)(layers.GlobalMaxPooling1D()(x))
    return keras.Model(frames, layers.Dense(num_classes)(x))
