"""Fraud among many honest payments, with a weight per class."""

import numpy as np

from tests.keras_examples.spec import Spec, by_split

SPEC = Spec(
    title="Imbalanced classification: credit card fraud detection",
    trains="Adam; binary cross-entropy with class weights; precision, recall, counts of right and wrong positives and "
    "negatives; checkpoint per epoch",
    overrides=[
        "optimizer=adam",
        "optimizer.learning_rate=0.01",
        "trainer.checkpoint.every_steps=4",
        "trainer.checkpoint.keep=30",
        "task=binary",
        "task.from_logits=false",
        "task.class_weights=[0.02,0.2]",
        "task.metrics=[FalseNegatives,FalsePositives,TrueNegatives,TruePositives]",
    ],
)


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Dense(32, activation="relu"),
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(outputs.units, activation="sigmoid"),
        ]
    )


def load():
    rng = np.random.default_rng(0)
    label = (rng.random(96) < 0.1).astype("int32")
    payment = rng.normal(size=(96, 12)) + 2 * label[:, None]
    return by_split({"payment": payment.astype("float32"), "label": label})
