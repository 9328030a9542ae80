"""Every layer of keras.layers, by both engines and three meshes, held against stock Keras."""
