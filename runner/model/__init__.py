"""Model builders: `(keras, input_shape, num_classes, **options) -> keras.Model`, one file a family."""
