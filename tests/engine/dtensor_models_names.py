"""The names of the models in `dtensor_models`, which imports TensorFlow."""

NAMES = (
    "convolutions",
    "one_dim",
    "attention",
    "subclassed",
    "nested",
    "own_layers",
)
NOT_TAKEN = {
    "depthwise": "layer depthwise_conv2d (DepthwiseConv2D)",
    "dilated": "layer conv2d (Conv2D with groups or dilation)",
    "wrapped": "(GRU)",
    "noisy": "layer gaussian_noise (GaussianNoise)",
    "mixed": "layer dense (Dense of mixed precision)",
}
