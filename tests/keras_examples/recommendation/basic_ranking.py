"""The rating of a film from the numbers of user and film."""


def make_model(keras, inputs, outputs):
    layers = keras.layers
    user = keras.Input(inputs["user"].shape, dtype="int32", name="user")
    movie = keras.Input(inputs["movie"].shape, dtype="int32", name="movie")
    sides = [layers.Flatten()(layers.Embedding(rows, 8)(number)) for number, rows in ((user, 16), (movie, 24))]
    x = layers.Concatenate()(sides)
    x = layers.Dense(16, activation="relu")(layers.Dense(32, activation="relu")(x))
    return keras.Model({"user": user, "movie": movie}, layers.Dense(outputs.units)(x))
