"""Films for users: each user's film is more similar than the others of the batch."""

from tests.keras_examples import data


def loss(ops, outputs, batch):
    user, movie = outputs[:, :8], outputs[:, 8:]
    is_padding = 1 - ops.expand_dims(ops.cast(batch["weight"], "float32"), 0)
    near = ops.matmul(user, ops.transpose(movie)) - 1e9 * is_padding
    return ops.logsumexp(near) - ops.sum(user * movie, axis=-1)


def make_model(keras, inputs, outputs):
    layers = keras.layers
    user = keras.Input(inputs["user"].shape, dtype="int32", name="user")
    movie = keras.Input(inputs["movie"].shape, dtype="int32", name="movie")
    sides = [layers.Flatten()(layers.Embedding(rows, outputs.units)(x)) for x, rows in ((user, 16), (movie, 24))]
    return keras.Model({"user": user, "movie": movie}, layers.Concatenate()(sides))


def load():
    splits = data.ratings()
    for arrays in splits.values():
        del arrays["rating"]
    return splits
