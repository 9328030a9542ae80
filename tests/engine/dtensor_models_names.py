"""The names of the models in `dtensor_models`, which imports TensorFlow."""

NAMES = (
    "convolutions",
    "one_and_three_dims",
    "attention",
    "recurrent",
    "subclassed",
    "nested",
    "mixed",
    "own_layers",
)
