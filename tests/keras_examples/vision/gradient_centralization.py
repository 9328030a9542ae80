"""Images by a convnet whose gradients have their mean removed."""


def centralized_rmsprop(learning_rate):
    import jax
    import optax

    def centralized(gradient):
        # Of kernels only, over all dims but that of the outputs.
        if gradient.ndim < 2:
            return gradient
        return gradient - gradient.mean(axis=tuple(range(gradient.ndim - 1)), keepdims=True)

    centralize = optax.stateless(lambda gradients, _: jax.tree.map(centralized, gradients))
    return optax.chain(centralize, optax.rmsprop(learning_rate, decay=0.9, eps=1e-7, eps_in_sqrt=False))


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Dropout(0.5),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(16, activation="relu"),
            layers.Dense(outputs.units, activation="sigmoid"),
        ]
    )
