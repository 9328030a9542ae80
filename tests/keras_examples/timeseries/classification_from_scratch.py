"""Series of one sensor by a fully convolutional network."""

from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Timeseries classification from scratch",
    trains="Adam; cross-entropy; accuracy; best checkpoint by loss, rate reduced on a plateau, early stopping",
    data="series()",
    overrides=[
        "optimizer=adam",
        "optimizer.schedule.plateau.metric=eval/loss",
        "optimizer.schedule.plateau.factor=0.5",
        "optimizer.schedule.plateau.patience=20",
        "optimizer.schedule.plateau.min_factor=0.1",
        "trainer.early_stopping.metric=eval/loss",
        "trainer.early_stopping.patience=50",
        "task.classes=2",
    ],
)


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    series = keras.Input(input_shape)
    x = series
    for _ in range(3):
        x = layers.BatchNormalization()(layers.Conv1D(16, 3, padding="same")(x))
        x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(series, layers.Dense(num_classes)(x))
