"""Ratings by the product of two embeddings."""


def make_model(keras, inputs, outputs):
    layers = keras.layers
    user = keras.Input(inputs["user"].shape, dtype="int32", name="user")
    movie = keras.Input(inputs["movie"].shape, dtype="int32", name="movie")
    sides, biases = [], []
    for number, count in ((user, 16), (movie, 24)):
        decay = keras.regularizers.L2(1e-6)
        table = layers.Embedding(count, 8, embeddings_initializer="he_normal", embeddings_regularizer=decay)
        sides.append(layers.Flatten()(table(number)))
        biases.append(layers.Flatten()(layers.Embedding(count, outputs.units)(number)))
    x = layers.Add()([layers.Dot(axes=1)(sides), *biases])
    return keras.Model({"user": user, "movie": movie}, layers.Activation("sigmoid")(x))
