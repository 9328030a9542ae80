"""The table: a call of each layer as a user writes it, `L` for `keras.layers`, and the shapes of its inputs.

A line is `call @ shape; shape`, of x, y and z. Before the shape of whole numbers below 7 stands `i7:`, before that of
numbers between 0 and 1 `u:`. After ` ! ` are words of the line that rejects the call. A line that begins with `~`
computes in bfloat16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FUNCTIONS = """
elu exponential gelu hard_sigmoid linear mish relu selu sigmoid softmax softplus softsign tanh celu hard_shrink
hard_silu hard_tanh leaky_relu log_sigmoid log_softmax relu6 silu soft_shrink sparse_plus sparse_sigmoid sparsemax
squareplus tanh_shrink
"""
_LINES = {
    "Dense, embedding, activations": """
L.Dense(4, "gelu", kernel_initializer="he_normal")(x) @ 5
L.Dense(4, kernel_regularizer="l2", bias_regularizer="l1", activity_regularizer="l2")(x) @ 3,5
L.Dense(4, use_bias=False, kernel_constraint=K.constraints.UnitNorm(axis=0))(x) @ 2,2,3,5
L.Dense(4, kernel_constraint=K.constraints.MinMaxNorm(0.2, 0.4, rate=0.5), bias_constraint="non_neg")(x) @ 5
L.Dense(4, kernel_regularizer=K.regularizers.OrthogonalRegularizer(0.1))(x) @ 5
L.Dense(4, lora_rank=2, lora_alpha=4)(x) @ 5
L.Dense(4, trainable=False)(x) @ 5
(lambda layer: layer(layer(x)))(L.Dense(5)) @ 5
L.EinsumDense("abc,cd->abd", (3, 4), bias_axes="bd", activation="tanh")(x) @ 3,5
L.EinsumDense("abc,cde->abde", (3, 2, 3), kernel_regularizer="l2")(x) @ 3,5
L.EinsumDense("...x,xy->...y", 4, bias_axes="y")(x) @ 3,5
L.Embedding(7, 4, embeddings_regularizer="l2")(x) @ i7:5
L.Embedding(7, 4, embeddings_constraint=K.constraints.MaxNorm(0.3))(x) @ i7:2,3
L.GlobalAveragePooling1D()(L.Embedding(7, 4, mask_zero=True)(x)) @ i7:5
L.Embedding(7, 4, lora_rank=2)(x) @ i7:5
(lambda layer: layer(layer(x), reverse=True))(L.ReversibleEmbedding(7, 4, logit_soft_cap=2.0)) @ i7:5
(lambda layer: layer(layer(x), reverse=True))(L.ReversibleEmbedding(7, 4, tie_weights=False)) @ i7:5
L.ELU(alpha=0.3)(x) @ 3,4
L.LeakyReLU(negative_slope=0.2)(x) @ 3,4
L.PReLU(shared_axes=[1], alpha_regularizer="l2")(x) @ 3,4
L.ReLU(max_value=1.5, negative_slope=0.1, threshold=0.2)(x) @ 3,4
L.Softmax(axis=[1, 2])(x) @ 3,4
L.Identity()(x) @ 3,4
L.Lambda(lambda x, factor: x * x * factor, arguments={"factor": 0.5})(x) @ 3,4
L.ActivityRegularization(l1=0.01, l2=0.02)(x) @ 3,4
L.JaxLayer(lambda params, inputs: inputs * params["w"], lambda rng, inputs: {"w": inputs[0] * 0 + 0.5})(x) @ 4
~L.Dense(4, dtype="mixed_bfloat16")(x) @ 5
~L.Embedding(7, 4, dtype="mixed_bfloat16")(x) @ i7:5
L.Dense(4, dtype="mixed_float16")(x) @ 5 ! engine.precision=bfloat16
L.Dense(4, dtype="bfloat16")(x) @ 5 ! engine.precision=bfloat16
""",
    "Convolution": """
L.Conv1D(4, 3, padding="causal", dilation_rate=2)(x) @ 9,3
L.Conv1D(4, 3, strides=2, padding="same", data_format="channels_first")(x) @ 3,9
L.Conv2D(4, 3, strides=2, padding="same", kernel_regularizer="l2", activity_regularizer="l2")(x) @ 7,6,3
L.Conv2D(4, (2, 3), dilation_rate=(2, 1), padding="same", use_bias=False, activation="tanh")(x) @ 7,6,3
L.Conv2D(4, 3, groups=2)(x) @ 7,6,4
L.Conv2D(4, 2, strides=3, kernel_constraint=K.constraints.MaxNorm(0.3))(x) @ 7,6,3
L.Conv2D(4, 2, data_format="channels_first", lora_rank=2)(x) @ 3,7,6
L.Conv3D(4, 2, strides=(1, 2, 1), padding="same")(x) @ 4,5,4,3
L.Conv3D(4, 2, dilation_rate=2, groups=2)(x) @ 4,5,4,4
L.Conv1DTranspose(4, 3, strides=2, padding="same")(x) @ 9,3
L.Conv2DTranspose(4, (3, 2), strides=2, output_padding=1, kernel_regularizer="l2")(x) @ 4,3,3
L.Conv2DTranspose(4, 3, dilation_rate=2, data_format="channels_first")(x) @ 3,4,3
L.Conv3DTranspose(4, 2, strides=(2, 1, 2))(x) @ 3,3,2,3
L.DepthwiseConv1D(3, depth_multiplier=2, strides=2, padding="same")(x) @ 9,3
L.DepthwiseConv2D((3, 2), dilation_rate=2, depthwise_regularizer="l2", activation="tanh")(x) @ 7,6,3
L.DepthwiseConv2D(3, data_format="channels_first")(x) @ 3,7,6
L.SeparableConv1D(4, 3, strides=2, padding="same")(x) @ 9,3
L.SeparableConv2D(4, 3, depth_multiplier=2, pointwise_constraint=K.constraints.MaxNorm(0.3))(x) @ 7,6,3
~L.Conv2D(4, 3, use_bias=False, dtype="mixed_bfloat16")(x) @ 7,6,3
~L.DepthwiseConv2D(3, use_bias=False, dtype="mixed_bfloat16")(x) @ 7,6,3
""",
    "Merging, reshaping, pooling": """
L.Add()([x, y, z]) @ 3,4; 3,4; 3,4
L.Average()([x, y]) @ 3,4; 1,4
L.Maximum()([x, y]) @ 3,4; 3,4
L.Minimum()([x, y, z]) @ 3,4; 3,4; 3,4
L.Multiply()([x, y]) @ 3,4; 4
L.Subtract()([x, y]) @ 3,4; 1,4
L.Concatenate(axis=1)([x, y]) @ 3,4; 2,4
L.Concatenate()([x, y, z]) @ 3,4; 3,2; 3,1
L.Dot(axes=(2, 1), normalize=True)([x, y]) @ 3,4; 4,2
L.Dot(axes=1)([x, y]) @ 4; 4
L.Flatten(data_format="channels_first")(x) @ 2,3,4
L.Permute((3, 1, 2))(x) @ 2,3,4
L.RepeatVector(3)(x) @ 4
L.Reshape((-1, 2, 2))(x) @ 3,4
L.Cropping1D((1, 2))(x) @ 6,3
L.Cropping2D(((1, 0), (0, 2)))(x) @ 5,6,2
L.Cropping3D((1, 2, 1))(x) @ 5,6,5,2
L.ZeroPadding1D(2)(x) @ 6,3
L.ZeroPadding2D((1, 2), data_format="channels_first")(x) @ 2,5,6
L.ZeroPadding3D(1)(x) @ 3,4,3,2
L.UpSampling1D(3)(x) @ 3,2
L.UpSampling2D((2, 3))(x) @ 3,2,2
L.UpSampling2D(interpolation="bilinear")(x) @ 3,4,2
L.UpSampling2D(interpolation="lanczos3")(x) @ 3,4,2
L.UpSampling3D((1, 2, 3))(x) @ 2,3,2,2
L.AveragePooling1D(3, strides=2, padding="same")(x) @ 9,3
L.AveragePooling2D((3, 2), strides=(1, 2))(x) @ 7,6,3
L.AveragePooling3D(2, padding="same")(x) @ 4,5,4,3
L.MaxPooling1D(2, data_format="channels_first")(x) @ 3,9
L.MaxPooling2D(3, strides=2, padding="same")(x) @ 7,6,3
L.MaxPooling3D((2, 3, 2), strides=(2, 1, 1))(x) @ 4,5,4,3
L.AdaptiveAveragePooling1D(3)(x) @ 9,3
L.AdaptiveAveragePooling2D((3, 2))(x) @ 7,6,3
L.AdaptiveAveragePooling3D(2)(x) @ 4,5,4,3
L.AdaptiveMaxPooling1D(3)(x) @ 9,3
L.AdaptiveMaxPooling2D((3, 2))(x) @ 7,6,3
L.AdaptiveMaxPooling3D(2)(x) @ 4,5,4,3
L.GlobalAveragePooling1D(keepdims=True)(x) @ 9,3
L.GlobalAveragePooling2D(data_format="channels_first")(x) @ 3,7,6
L.GlobalAveragePooling3D()(x) @ 4,5,4,3
L.GlobalMaxPooling1D()(x) @ 9,3
L.GlobalMaxPooling2D(keepdims=True)(x) @ 7,6,3
L.GlobalMaxPooling3D()(x) @ 4,5,4,3
""",
    "Normalization and regularization": """
L.BatchNormalization(momentum=0.5, epsilon=0.1, gamma_regularizer="l2")(x) @ 4,3,5
L.BatchNormalization(axis=1, center=False, scale=False)(x) @ 4,3,5
L.BatchNormalization(gamma_constraint="non_neg", beta_constraint="non_neg")(x) @ 5
L.BatchNormalization(trainable=False)(x) @ 3,5
(lambda layer: layer(layer(x)))(L.BatchNormalization()) @ 5
L.LayerNormalization(axis=[1, 3])(x) @ 4,3,5
L.LayerNormalization(axis=-2, epsilon=1e-6, scale=False)(x) @ 4,3,5
L.GroupNormalization(3, gamma_regularizer="l2")(x) @ 4,3,6
L.GroupNormalization(2, axis=1)(x) @ 4,3,6
L.UnitNormalization(axis=[1, 2])(x) @ 4,3,6
L.RMSNormalization(epsilon=0.1)(x) @ 4,3,6
L.SpectralNormalization(L.Dense(4, kernel_constraint=K.constraints.MaxNorm(0.3)), power_iterations=3)(x) @ 5
L.SpectralNormalization(L.Conv2D(4, 2))(x) @ 4,4,3
L.Dropout(0.5)(x) @ 4,5
L.Dropout(0.3, noise_shape=(None, 1, 5), seed=7)(x) @ 4,5
L.Dropout(0.5)(x, training=True) @ 4,5
(lambda layer: layer(layer(x)))(L.Dropout(0.5)) @ 4,5
L.AlphaDropout(0.3, noise_shape=(None, 1, 5))(x) @ 4,5
L.GaussianDropout(0.3, seed=5)(x) @ 4,5
L.GaussianNoise(0.3)(x) @ 4,5
L.SpatialDropout1D(0.5)(x) @ 4,5
L.SpatialDropout2D(0.5, data_format="channels_first")(x) @ 5,4,3
L.SpatialDropout3D(0.3, seed=5)(x) @ 4,3,2,5
~L.LayerNormalization(dtype="mixed_bfloat16")(x) @ 3,5
~L.BatchNormalization(dtype="mixed_bfloat16")(x) @ 4,3,5
""",
    "Recurrent": """
L.LSTM(4, return_sequences=True, return_state=True, dropout=0.3, recurrent_dropout=0.3)(x) @ 5,3
L.LSTM(4, go_backwards=True, unit_forget_bias=False, kernel_regularizer="l2", bias_constraint="non_neg")(x) @ 5,3
L.LSTM(4)(x, initial_state=[y, z]) @ 5,3; 4; 4
L.LSTM(3)(L.Embedding(7, 4, mask_zero=True)(x)) @ i7:5
L.GRU(4, reset_after=False, return_sequences=True)(x) @ 5,3
L.GRU(4, unroll=True, activity_regularizer="l2")(x) @ 5,3
L.GRU(3, return_sequences=True)(L.Masking(0.0)(L.ReLU()(x))) @ 5,3
L.SimpleRNN(4, activation="sigmoid", use_bias=False, recurrent_dropout=0.4)(x) @ 5,3
L.RNN(L.SimpleRNNCell(4, recurrent_regularizer="l2"), return_state=True)(x) @ 5,3
L.RNN([L.GRUCell(4), L.LSTMCell(3, dropout=0.4)], return_sequences=True)(x) @ 5,3
L.RNN(L.StackedRNNCells([L.LSTMCell(4), L.LSTMCell(3)]))(x) @ 5,3
L.Bidirectional(L.LSTM(4, return_sequences=True), merge_mode="mul")(x) @ 5,3
L.Bidirectional(L.GRU(4, dropout=0.4), backward_layer=L.GRU(4, go_backwards=True, activation="relu"))(x) @ 5,3
L.TimeDistributed(L.Dense(4))(x) @ 5,3
L.TimeDistributed(L.BatchNormalization())(x) @ 5,3
L.TimeDistributed(L.Conv2D(3, 2))(x) @ 3,5,4,2
L.ConvLSTM1D(2, 2, padding="same", return_sequences=True, dropout=0.4)(x) @ 3,5,2
L.ConvLSTM2D(2, 2, strides=2, recurrent_dropout=0.4)(x) @ 3,4,4,2
L.ConvLSTM3D(2, 2, data_format="channels_first")(x) @ 3,2,3,3,3
~L.LSTM(4, dtype="mixed_bfloat16")(x) @ 5,3
""",
    "Attention": """
L.Attention(use_scale=True, dropout=0.4)([x, y]) @ 4,3; 5,3
L.Attention(score_mode="concat")([x, y], use_causal_mask=True) @ 4,3; 4,3
L.AdditiveAttention(dropout=0.4)([x, y, z]) @ 4,3; 5,3; 5,3
L.AdditiveAttention()([x, y], return_attention_scores=True) @ 4,3; 5,3
L.MultiHeadAttention(2, 3, value_dim=4, output_shape=5, dropout=0.4)(x, y, z) @ 4,6; 5,7; 5,2
L.MultiHeadAttention(2, 3, use_bias=False)(x, x, use_causal_mask=True, return_attention_scores=True) @ 4,6
L.MultiHeadAttention(2, 3, kernel_regularizer="l2", bias_constraint="non_neg")(x, y) @ 4,6; 5,7
L.MultiHeadAttention(2, 3, attention_axes=(1, 2))(x, x) @ 2,3,4
L.MultiHeadAttention(2, 3)(x, x, attention_mask=K.ops.cast(y, "bool")) @ 4,6; i4:4,4
L.MultiHeadAttention(2, 3, use_gate=True)(x, x) @ 4,6
L.MultiHeadAttention(2, 2)(x, L.Embedding(7, 4, mask_zero=True)(y)) @ 4,6; i7:5
L.GroupQueryAttention(3, 4, 2, dropout=0.4)(x, x, use_causal_mask=True) @ 4,6
L.GroupQueryAttention(3, 4, 1, use_bias=False, use_gate=True)(x, x) @ 4,6
~L.MultiHeadAttention(2, 3, dtype="mixed_bfloat16")(x, x) @ 4,6
""",
    "Preprocessing": """
L.CategoryEncoding(6, output_mode="count")(x, count_weights=y) @ i6:4; 4
L.Discretization([-1.0, 0.0, 0.7], output_mode="multi_hot")(x) @ 4
L.Normalization(axis=1, mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 3.0], invert=True)(x) @ 3,4
L.Rescaling(2.0, offset=-1.0)(x) @ 4
L.MelSpectrogram(fft_length=16, sequence_stride=8, num_mel_bins=4, sampling_rate=100)(x) @ 64
L.STFTSpectrogram("log", frame_length=16, frame_step=8, expand_dims=True)(x) @ 64,1
L.CenterCrop(4, 5)(x) @ u:8,9,3
L.Resizing(5, 4, interpolation="bicubic", antialias=True)(x) @ u:8,9,3
L.Resizing(12, 11, crop_to_aspect_ratio=True)(x) @ u:8,9,3
L.RandomFlip(seed=5)(x) @ u:8,9,3
L.RandomRotation(0.2, fill_mode="wrap")(x) @ u:8,9,3
L.RandomTranslation(0.2, 0.3, interpolation="nearest")(x) @ u:8,9,3
L.RandomZoom((-0.3, -0.1), seed=5)(x) @ u:8,9,3
L.RandomShear(0.2, 0.3)(x) @ u:8,9,3
L.RandomPerspective(0.5, scale=0.3)(x) @ u:8,9,3
L.RandomErasing(value_range=(0, 1), fill_value=0.5)(x) @ u:8,9,3
L.CutMix(0.5)(x) @ u:8,9,3
L.MixUp(0.5)(x) @ u:8,9,3
L.RandomBrightness(0.3, value_range=(0, 1))(x) @ u:8,9,3
L.RandomContrast((0.1, 0.2), value_range=(0, 1))(x) @ u:8,9,3
L.RandomColorDegeneration(0.3, value_range=(0, 1))(x) @ u:8,9,3
L.RandomHue(0.3, value_range=(0, 1))(x) @ u:8,9,3
L.RandomSaturation(0.3, value_range=(0, 1))(x) @ u:8,9,3
L.RandomSharpness(0.3, value_range=(0, 1))(x) @ u:8,9,3
L.RandomPosterization(4, value_range=(0, 1))(x) @ u:8,9,3
L.RandomColorJitter(value_range=(0, 1), brightness_factor=0.2, hue_factor=0.1)(x) @ u:8,9,3
L.RandomGaussianBlur(value_range=(0, 1), kernel_size=(3, 5), sigma=0.5)(x) @ u:8,9,3
L.RandomGrayscale(0.5)(x) @ u:8,9,3
L.RandomInvert(0.5, value_range=(0, 1))(x) @ u:8,9,3
L.RandAugment(value_range=(0, 1), num_ops=1)(x) @ u:8,9,3
L.ContrastLimitedAdaptiveHistogramEqualization(value_range=(0, 1), tile_grid_size=(2, 2))(x) @ u:8,8,3
L.Solarization(0.2, 0.3, value_range=(0, 1))(x) @ u:8,9,3
L.Pipeline([L.Rescaling(0.5), L.RandomFlip("horizontal")])(x) @ u:8,9,3
L.AugMix(value_range=(0, 1))(x) @ u:8,9,3 ! draws from Python's random numbers once
""",
}
# Classes of `keras.layers` without a call, and why.
NAMED = {
    "Layer": "the base of all layers",
    "InputLayer": "what `keras.Input` makes: in every model",
    "Wrapper": "the base of wrappers, without arithmetic",
    "Hashing": "Keras computes it in TensorFlow",
    "HashedCrossing": "Keras computes it in TensorFlow",
    "IntegerLookup": "Keras computes it in TensorFlow",
    "StringLookup": "takes words: a dataset's arrays hold numbers",
    "TextVectorization": "takes words: a dataset's arrays hold numbers",
    "FlaxLayer": "wraps a module of Flax, which is no dependency",
    "TorchModuleWrapper": "wraps a module of PyTorch, which JAX can't compute",
    "TFSMLayer": "wraps a SavedModel of TensorFlow, which JAX can't compute",
    "MaxNumBoundingBoxes": "pads lists of bounding boxes, and passes images on as they are",
    "RandomCrop": "stock Keras can't train it here",
    "RandomElasticTransform": "stock Keras can't train it here",
    "AutoContrast": "stock Keras's gradient of it is no number",
    "Equalization": "stock Keras can't train it here",
}


@dataclass(frozen=True)
class Tensor:
    """An input: its shape without the batch, and its kind: `normal`, `unit`, or the number that integers are below."""

    shape: tuple[int, ...]
    kind: str = "normal"


@dataclass(frozen=True)
class Case:
    """A line of the table."""

    call: str
    inputs: tuple[Tensor, ...]
    refused: str
    is_bfloat16: bool

    @property
    def layers(self) -> list[str]:
        """The layers that it calls."""
        return re.findall(r"\bL\.(\w+)", self.call)


def _tensor(text: str) -> Tensor:
    kind, _, sizes = text.strip().rpartition(":")
    shape = tuple(map(int, sizes.split(",")))
    return Tensor(shape, {"": "normal", "u": "unit"}.get(kind, kind.removeprefix("i")))


def _case(line: str) -> Case:
    call, _, rest = line.removeprefix("~").partition(" @ ")
    shapes, _, refused = rest.partition(" ! ")
    return Case(call, tuple(map(_tensor, shapes.split(";"))), refused, line.startswith("~"))


PARTS = {title: [_case(line) for line in lines.strip().splitlines()] for title, lines in _LINES.items()}
PARTS["Dense, embedding, activations"] += [_case(f'L.Activation("{name}")(x) @ 3,4') for name in _FUNCTIONS.split()]
