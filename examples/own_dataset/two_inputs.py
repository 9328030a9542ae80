def build(keras, inputs, outputs, hidden=32):
    image = keras.Input(inputs["image"].shape, name="image")
    vector = keras.Input(inputs["vector"].shape, name="vector")
    x = keras.layers.Dense(hidden, activation="relu", name="of_image")(keras.layers.Flatten()(image))
    y = keras.layers.Dense(hidden, activation="relu", name="of_vector")(vector)
    z = keras.layers.Concatenate()([x, y])
    return keras.Model({"image": image, "vector": vector}, keras.layers.Dense(outputs.units, name="head")(z))
