"""Ratings by embeddings that share rows: quotient and remainder of a number."""

from tests.keras_examples import data


def make_model(keras, inputs, outputs):
    layers = keras.layers

    def embedded(name, rows):
        number = keras.Input(inputs[name].shape, dtype="int32", name=name)
        return number, layers.Flatten()(layers.Embedding(rows, 8)(number))

    columns = {"user_high": 4, "user_low": 4, "movie_high": 6, "movie_low": 4}
    numbers, codes = zip(*[embedded(name, rows) for name, rows in columns.items()], strict=True)
    user = layers.Multiply()(codes[:2])
    movie = layers.Multiply()(codes[2:])
    x = layers.Activation("sigmoid")(layers.Dot(axes=1)([user, movie]))
    scaled = layers.Dense(outputs.units, name="scaled")(x)
    return keras.Model(dict(zip(columns, numbers, strict=True)), scaled)


def load():
    splits = {}
    for split, arrays in data.ratings(scale=5.0).items():
        user, movie = arrays["user"], arrays["movie"]
        numbers = {"user_high": user // 4, "user_low": user % 4, "movie_high": movie // 4, "movie_low": movie % 4}
        splits[split] = {**numbers, "rating": arrays["rating"]}
    return splits
