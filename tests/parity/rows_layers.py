"""Rows about models: preprocessing, penalties, state, randomness, sequences, and what is trained."""

from typing import Any

from tests.parity import data
from tests.parity.row import Program, row

ALL = "loss val_loss accuracy val_accuracy weights"
BOTH = ("jax", "keras_dtensor")
WHOLE = "dataset.remainder=drop"  # on data whose batches are whole, so that nothing is dropped


def dense(keras: Any, units: int = 3, **options: Any) -> Any:
    """Two dense layers; the options are those of the first one."""
    layers = keras.layers
    return keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh", **options), layers.Dense(units)])


def stacked(keras: Any, shape: tuple[int | None, ...], *layers: Any, units: int = 3) -> Any:
    """Layers with a dense one at their end."""
    return keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(units)])


def classified(keras: Any, model: Any, rate: float = 0.1, **fit: Any) -> Program:
    """The program of a classifier."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Program(model, {"optimizer": keras.optimizers.SGD(rate), "loss": loss, "metrics": ["accuracy"]}, fit)


# Preprocessing.


def convnet(keras: Any, *first: Any) -> Any:
    """A small network for images; its first layers are given."""
    layers = keras.layers
    return stacked(keras, (8, 8, 1), *first, layers.Conv2D(4, 3, activation="tanh"), layers.Flatten())


row("rescaling_of_bytes", data.images, always=True, engines=BOTH)(
    lambda keras: classified(keras, convnet(keras, keras.layers.Rescaling(1 / 255)))
)
row("rescaling_of_floats", data.float_images)(
    lambda keras: classified(keras, convnet(keras, keras.layers.Rescaling(1 / 127.5, offset=-1)))
)
row("bytes_as_they_are", data.images, "task.scale_images=false optimizer.learning_rate=1e-5")(
    lambda keras: classified(keras, convnet(keras), rate=1e-5)
)
FRACTIONS = "bytes of images are divided by 255 unless the model rescales them, or `task.scale_images` is false"
row("bytes_without_rescaling", data.images, "optimizer.learning_rate=1e-5", meant={ALL: FRACTIONS})(
    lambda keras: classified(keras, convnet(keras), rate=1e-5)
)


@row("bytes_scaled_before", data.images)
def bytes_scaled_before(keras: Any) -> Program:
    program = classified(keras, convnet(keras))
    program.before = lambda arrays: {"image": arrays["image"].astype("float32") / 255, "label": arrays["label"]}
    return program


@row("normalization_layer", data.ages)
def normalization_layer(keras: Any) -> Program:
    layer = keras.layers.Normalization()
    layer.adapt(data.ages()["train"]["age"])
    return classified(keras, stacked(keras, (1,), layer))


row("resizing_and_center_crop", data.images)(
    lambda keras: classified(
        keras,
        convnet(keras, keras.layers.Resizing(10, 10), keras.layers.CenterCrop(8, 8), keras.layers.Rescaling(1 / 255)),
    )
)


# Penalties and constraints. Penalties count in `loss` and `val_loss`.

row("l2_regularizer", data.classes, always=True, engines=BOTH)(
    lambda keras: classified(keras, dense(keras, kernel_regularizer=keras.regularizers.L2(0.05)))
)
for name, options in {
    "l1_regularizer": lambda keras: {"kernel_regularizer": keras.regularizers.L1(0.01)},
    "l1_l2_regularizer": lambda keras: {"kernel_regularizer": keras.regularizers.L1L2(0.01, 0.02)},
    "bias_regularizer": lambda keras: {"bias_regularizer": keras.regularizers.L1L2(0.01, 0.02)},
    "orthogonal_regularizer": lambda keras: {"kernel_regularizer": keras.regularizers.OrthogonalRegularizer(0.01)},
    "max_norm": lambda keras: {"kernel_constraint": keras.constraints.MaxNorm(0.5)},
    "unit_norm": lambda keras: {"kernel_constraint": keras.constraints.UnitNorm()},
    "min_max_norm": lambda keras: {"kernel_constraint": keras.constraints.MinMaxNorm(0.2, 0.6, rate=0.5)},
    "non_negative": lambda keras: {"bias_constraint": keras.constraints.NonNeg()},
}.items():
    # DTensor takes no constraints.
    row(name, data.classes, engines=BOTH if name.endswith("regularizer") else ("jax",))(
        lambda keras, options=options: classified(keras, dense(keras, **options(keras)))
    )

ACTIVITY = "an activity penalty would count the padding of the last batch"


@row("activity_regularizer", data.whole_batches, WHOLE, engines=BOTH)
@row("activity_regularizer_of_partial_batch", data.classes, meant={"rejected": ACTIVITY})
def activity_regularizer(keras: Any) -> Program:
    return classified(keras, dense(keras, activity_regularizer=keras.regularizers.L2(0.05)))


def operations(keras: Any) -> Any:
    """The functions of tensors, by the same names."""
    return getattr(keras, "ops", keras.backend)


def penalized(keras: Any) -> Any:
    """A layer that adds a loss of its outputs."""

    ops = operations(keras)

    class Penalized(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * ops.mean(ops.square(x)))
            return x

    return Penalized()


row("add_loss", data.whole_batches, WHOLE, engines=BOTH)(
    lambda keras: classified(keras, stacked(keras, (6,), keras.layers.Dense(5), penalized(keras)))
)


@row("add_loss_alone", data.unlabeled, f"{WHOLE} task=custom task._target_={__name__}.no_loss", target=())
def add_loss_alone(keras: Any) -> Program:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), penalized(keras)])
    return Program(model, {"optimizer": keras.optimizers.SGD(0.1)})


def no_loss(ops: Any, outputs: Any, batch: Any) -> Any:
    """The task's loss of a model whose layers add its loss."""
    del batch
    return 0.0 * ops.sum(outputs, axis=-1)


# Single layers, among them some with state and some that mix the rows of a batch.


def less_mean(keras: Any) -> Any:
    """A layer that subtracts the mean of the batch."""
    return keras.layers.Lambda(lambda t: t - operations(keras).mean(t, axis=0))


STATISTICS = "batch statistics would count the padding of the last batch"
MIXED = "padding of the last batch would count in what a layer computes of several rows"
MIXED_EVALUATION = f"{WHOLE} dataset.eval_batch_size=16"
for name, arrays, overrides, more, layers in (
    ("discretization_layer", data.ages, "", {}, lambda layers: [
        layers.Discretization(bin_boundaries=[30.0, 40.0, 55.0], output_mode="one_hot")]),
    ("category_encoding_layer", data.kinds, "", {}, lambda layers: [
        layers.CategoryEncoding(5, output_mode="one_hot")]),
    ("activity_regularization_layer", data.whole_batches, "", {}, lambda layers: [
        layers.ActivityRegularization(l1=0.02)]),
    ("batch_normalization", data.whole_batches, "", {"engines": BOTH}, lambda layers: [
        layers.Dense(8), layers.BatchNormalization(momentum=0.9)]),
    ("batch_normalization_of_partial_batch", data.classes, "", {"meant": {"rejected": STATISTICS}}, lambda layers: [
        layers.BatchNormalization()]),
    ("frozen_batch_normalization", data.whole_batches, WHOLE, {}, lambda layers: [
        layers.BatchNormalization(trainable=False), layers.Dense(8)]),
    ("masking_and_bidirectional_gru", data.sequences, "", {}, lambda layers: [
        layers.Masking(), layers.Bidirectional(layers.GRU(4))]),
):  # fmt: skip
    row(name, arrays, overrides, **more)(
        lambda keras, arrays=arrays, layers=layers: classified(
            keras, stacked(keras, next(iter(arrays()["train"].values())).shape[1:], *layers(keras.layers))
        )
    )


@row("rows_of_a_batch_mixed", data.whole_batches, MIXED_EVALUATION, always=True, engines=BOTH)
@row("rows_of_a_partial_batch_mixed", data.classes, meant={"rejected": MIXED})
def rows_of_a_batch_mixed(keras: Any) -> Program:
    return classified(keras, stacked(keras, (6,), keras.layers.Dense(8, "tanh"), less_mean(keras)))


# Random layers.

SLOW = "optimizer.learning_rate=1e-9"  # so that what is drawn in training does not change the evaluation
row("dropout", data.classes, SLOW)(
    lambda keras: classified(keras, stacked(keras, (6,), keras.layers.Dropout(0.5)), rate=1e-9)
)


@row("dropout_with_training_true", data.classes, SLOW)
def dropout_with_training_true(keras: Any) -> Program:
    # Keras's `evaluate` calls the layer with training=False all the same, unlike a call of the model.
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(3)(keras.layers.Dropout(0.5)(inputs, training=True))
    return classified(keras, keras.Model(inputs, outputs), rate=1e-9)


NOISE = {"tolerance": 0.15, "why": "means of 1,600 random draws; without them the losses are half"}


@row("sampling_in_evaluation", data.many_numbers, f"task=regression {SLOW}", **NOISE)
def sampling_in_evaluation(keras: Any) -> Program:
    class Sampling(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seed_generator = keras.random.SeedGenerator(3)

        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x), seed=self.seed_generator)

    model = stacked(keras, (6,), Sampling(), units=1)
    return Program(model, {"optimizer": keras.optimizers.SGD(1e-9), "loss": "mse"})


# What is trained.


@row("frozen_layer", data.classes)
def frozen_layer(keras: Any) -> Program:
    model = dense(keras, kernel_regularizer=keras.regularizers.L2(0.1))
    model.layers[0].trainable = False
    return classified(keras, model)


@row("lora", data.classes)
def lora(keras: Any) -> Program:
    model = dense(keras)
    model.layers[0].enable_lora(2)
    return classified(keras, model)


@row("subclassed_model", data.classes, engines=BOTH)
def subclassed_model(keras: Any) -> Program:
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(8, "tanh")
            self.out = keras.layers.Dense(3)

        def call(self, x):
            return self.out(self.hidden(x))

    model = Net()
    model(keras.Input((6,)))
    return classified(keras, model)


# Sequences.


@row("embedding_and_masked_lstm", data.tokens)
def embedding_and_masked_lstm(keras: Any) -> Program:
    layers = keras.layers
    tokens = keras.Input((7,), dtype="int32")
    hidden = [layers.Embedding(16, 6, mask_zero=True), layers.LSTM(5)]
    return classified(keras, keras.Sequential([tokens, *hidden, layers.Dense(3)]))


@row("attention", data.sequences)
def attention(keras: Any) -> Program:
    layers = keras.layers
    x = inputs = keras.Input((5, 4))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True))
    x = layers.GlobalAveragePooling1D()(layers.Conv1D(6, 3, padding="causal", activation="gelu")(x))
    return classified(keras, keras.Model(inputs, layers.Dense(3)(x)))


def tagger(keras: Any, **options: Any) -> Any:
    """A class per token."""
    layers = keras.layers
    tokens = keras.Input((7,), dtype="int32")
    recurrent = layers.SimpleRNN(5, return_sequences=True)
    return keras.Sequential([tokens, layers.Embedding(16, 6, **options), recurrent, layers.Dense(4)])


POSITIONS = "task=positions task.classes=4"
DIVISOR = "losses are divided by the sum of the label weights, in Keras by the number of positions"
COUNTED = "label weights count in metrics; in Keras they count in `weighted_metrics` only"
WEIGHTED = {"loss val_loss weights": DIVISOR, "accuracy val_accuracy": COUNTED}
row("class_per_token", data.tagged, POSITIONS)(lambda keras: classified(keras, tagger(keras)))
MEAN = "means over several steps weigh each position that counts alike, in Keras each example"
LOST = "in Keras on JAX, the accuracy of training steps counts masked positions"
MASKED = {"loss val_loss": MEAN, "accuracy": LOST}
row("mask_that_reaches_the_loss", data.tagged, f"{POSITIONS} task.label_weight=mask", meant=MASKED)(
    lambda keras: classified(keras, tagger(keras, mask_zero=True))
)
TWO_DIMS = f"{POSITIONS} task.label_weight=importance"
row("sample_weight_of_two_dims", data.tagged_with_weights, TWO_DIMS, weight="importance", meant=WEIGHTED)(
    lambda keras: classified(keras, tagger(keras))
)
