"""The rating of a film by a cross network of low rank."""

from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Ranking with Deep and Cross Networks",
    trains="AdamW; mean squared error; RMSE",
    data="ratings(scale=5.0)",
    overrides=["optimizer=adamw", "optimizer.learning_rate=0.01", "task=regression", "task.target=rating"],
    simplified=["users and films alone, in place of seven columns"],
)


def make_model(keras, inputs, outputs):
    layers = keras.layers
    user = keras.Input(inputs["user"].shape, dtype="int32", name="user")
    movie = keras.Input(inputs["movie"].shape, dtype="int32", name="movie")
    sides = [layers.Flatten()(layers.Embedding(rows, 8)(number)) for number, rows in ((user, 16), (movie, 24))]
    x = start = layers.Concatenate()(sides)
    for _ in range(2):
        low = layers.Dense(16)(layers.Dense(4, use_bias=False)(x))
        x = layers.Add()([layers.Multiply()([start, low]), x])
    for units in (16, 16):
        x = layers.Dense(units, activation="relu")(x)
    return keras.Model({"user": user, "movie": movie}, layers.Dense(outputs.units)(x))
