"""The rating of a film from the numbers of user and film."""

from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Recommending movies: ranking",
    trains="Adagrad; mean squared error; RMSE",
    data="ratings(scale=5.0)",
    overrides=[
        "optimizer=keras",
        "optimizer.class_name=Adagrad",
        "optimizer.learning_rate=0.1",
        "task=regression",
        "task.target=rating",
    ],
    simplified=["users and films are numbers already"],
)


def make_model(keras, inputs, outputs):
    layers = keras.layers
    user = keras.Input(inputs["user"].shape, dtype="int32", name="user")
    movie = keras.Input(inputs["movie"].shape, dtype="int32", name="movie")
    sides = [layers.Flatten()(layers.Embedding(rows, 8)(number)) for number, rows in ((user, 16), (movie, 24))]
    x = layers.Concatenate()(sides)
    x = layers.Dense(16, activation="relu")(layers.Dense(32, activation="relu")(x))
    return keras.Model({"user": user, "movie": movie}, layers.Dense(outputs.units)(x))
