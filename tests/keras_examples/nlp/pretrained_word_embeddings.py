"""News by a convnet over a frozen table of word vectors."""

import numpy as np


def make_model(keras, input_shape, num_classes):
    layers = keras.layers
    vectors = np.random.default_rng(1).normal(size=(64, 16))
    tokens = keras.Input(input_shape, dtype="int32")
    known = keras.initializers.Constant(vectors)
    x = layers.Embedding(64, 16, embeddings_initializer=known, trainable=False)(tokens)
    x = layers.MaxPooling1D(3)(layers.Conv1D(16, 5, activation="relu")(x))
    x = layers.Conv1D(16, 5, activation="relu")(x)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dropout(0.5)(layers.Dense(16, activation="relu")(x))
    return keras.Model(tokens, layers.Dense(num_classes)(x))
