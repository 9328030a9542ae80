"""Rows about training: losses, metrics, weights of examples, outputs, optimizers, schedules and callbacks."""

from typing import Any

import numpy as np

from tests.parity import data
from tests.parity.row import Program, row
from tests.parity.rows_layers import ALL, BOTH, WHOLE, classified, dense

# Weights of examples and classes.

row("class_weight", data.classes, "task.class_weights=[1.0,2.0,0.5]", always=True, engines=BOTH)(
    lambda keras: classified(keras, dense(keras), class_weight={0: 1.0, 1: 2.0, 2: 0.5})
)
row("sample_weight", data.weighted, "task.example_weight=importance", weight="importance", engines=BOTH)(
    lambda keras: classified(keras, dense(keras))
)

EVALUATED = "evaluations compute these metrics, training steps don't"
WEIGHTED = "task.example_weight=importance task.metrics=[{SparseCategoricalCrossentropy:{weighted:true}}]"
SPARSE = {"sparse_categorical_crossentropy": EVALUATED}


@row("weighted_metrics", data.weighted, WEIGHTED, weight="importance", meant=SPARSE)
def weighted_metrics(keras: Any) -> Program:
    program = classified(keras, dense(keras))
    program.compile["weighted_metrics"] = [keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]
    return program


# Order and splits.

DROPPED = "a partial last batch is dropped by default; `dataset.remainder=pad` trains on it"
EPOCH = "each epoch begins at its first batch; in Keras it continues where the epoch before stopped"
STEPS = "trainer.steps_per_epoch=2 trainer.limit_eval_batches=1 dataset.eval_batch_size=16"
row("partial_batch_dropped", data.classes, WHOLE, meant={ALL: DROPPED})(lambda keras: classified(keras, dense(keras)))
row("shuffled", data.classes, "dataset.shuffle=true", shuffles=True)(lambda keras: classified(keras, dense(keras)))
row("validation_split", data.classes, "dataset.train='train[:30]' dataset.validation='train[30:]'")(
    lambda keras: classified(keras, dense(keras), validation_split=12 / 42)
)
row("steps_per_epoch", data.whole_batches, STEPS, meant={"loss accuracy val_loss weights": EPOCH})(
    lambda keras: classified(keras, dense(keras), steps_per_epoch=2, validation_steps=1)
)

# Losses and metrics.


def compiled(keras: Any, loss: Any, *metrics: Any, units: int = 1, rate: float = 0.1, last: str = "") -> Program:
    """Two dense layers with a loss and metrics, and perhaps an activation at the end."""
    model = dense(keras, units)
    if last:
        model.add(keras.layers.Activation(last))
    return Program(model, {"optimizer": keras.optimizers.SGD(rate), "loss": loss, "metrics": list(metrics)})


row("label_smoothing", data.probabilities, "task.label_smoothing=0.1")(
    lambda keras: compiled(keras, keras.losses.CategoricalCrossentropy(True, 0.1), "accuracy", units=3)
)
OF_CLASSES = "auc auc_macro precision recall f1_score top_k_categorical_accuracy categorical_crossentropy"


@row(
    "metrics_of_classes",
    data.probabilities,
    "task.from_logits=false task.metrics=[AUC,{AUC:{multi_label:true,name:auc_macro}},Precision,Recall,"
    "{F1Score:{average:macro}},{TopKCategoricalAccuracy:{k:2}},CategoricalCrossentropy]",
    meant={OF_CLASSES: EVALUATED},
)
def metrics_of_classes(keras: Any) -> Program:
    metrics = keras.metrics
    areas = [metrics.AUC(name="auc"), metrics.AUC(multi_label=True, name="auc_macro")]
    counted = [*areas, metrics.Precision(name="precision"), metrics.Recall(name="recall")]
    others = [metrics.F1Score("macro"), metrics.TopKCategoricalAccuracy(2), metrics.CategoricalCrossentropy()]
    return compiled(keras, "categorical_crossentropy", "accuracy", *counted, *others, units=3, last="softmax")


BINARY = {"auc auc_pr precision recall": EVALUATED}


AREAS = "task=binary task.from_logits=false task.metrics=[AUC,{AUC:{curve:PR,name:auc_pr}}]"


@row("metrics_of_two_classes", data.two_classes, AREAS, meant=BINARY)
def metrics_of_two_classes(keras: Any) -> Program:
    metrics = keras.metrics
    areas = [metrics.AUC(name="auc"), metrics.AUC(curve="PR", name="auc_pr")]
    counted = [metrics.Precision(name="precision"), metrics.Recall(name="recall")]
    accuracy = metrics.BinaryAccuracy(name="accuracy")
    return compiled(keras, "binary_crossentropy", accuracy, *areas, *counted, last="sigmoid")


LABELS = (
    "task=multilabel task.from_logits=false task.label_smoothing=0.1 "
    "task.metrics=[{F1Score:{threshold:0.5,average:macro}}]"
)


@row("labels", data.tags, LABELS, meant={"f1_score": EVALUATED})
def labels(keras: Any) -> Program:
    accuracy, f1 = keras.metrics.BinaryAccuracy(name="accuracy"), keras.metrics.F1Score("macro", threshold=0.5)
    loss = keras.losses.BinaryCrossentropy(label_smoothing=0.1)
    return compiled(keras, loss, accuracy, f1, units=4, last="sigmoid")


NAMES = {"root_mean_squared_error": "rmse", "r2_score": "r2"}
OF_NUMBERS = {"root_mean_squared_error r2_score": EVALUATED}


@row("mean_squared_error", data.numbers, "task=regression", metrics=NAMES, meant=OF_NUMBERS)
def mean_squared_error(keras: Any) -> Program:
    return compiled(keras, "mse", "mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score())


row("huber", data.numbers, "task=regression task.loss=huber +task.loss_options.delta=0.5", engines=BOTH)(
    lambda keras: compiled(keras, keras.losses.Huber(delta=0.5), "mae")
)
# Keras's losses by name, each with its gradient, and of padded batches.
OF_REGRESSION = "mean_absolute_error log_cosh cosine_similarity hinge squared_hinge"
OF_PROBABILITIES = "categorical_focal_crossentropy categorical_hinge dice kl_divergence poisson tversky"
for loss in OF_REGRESSION.split():
    row(f"loss_{loss}", data.numbers, f"task=regression task.loss={loss}")(
        lambda keras, loss=loss: compiled(keras, loss, "mae")
    )
for loss in OF_PROBABILITIES.split():
    row(f"loss_{loss}", data.probabilities, f"task.from_logits=false task.loss={loss}")(
        lambda keras, loss=loss: compiled(keras, loss, "accuracy", units=3, last="softmax")
    )
FAR = "task=regression optimizer.learning_rate=1e-9"
SQUARES = "Keras's `R2Score` adds squares in float32, which loses the spread of numbers far from zero"
R2 = {"r2_score": EVALUATED, "val_r2_score": SQUARES}


@row("r2_far_from_zero", data.far_numbers, FAR, metrics=NAMES, meant=R2)
def r2_far_from_zero(keras: Any) -> Program:
    program = compiled(keras, "mse", "mae", keras.metrics.R2Score(), rate=1e-9)
    program.model.layers[-1].set_weights([np.zeros((8, 1)), np.array([1e6])])
    return program


def pinball_task(ops: Any, outputs: Any, batch: Any) -> Any:
    """The loss of the next row, as `task=custom` takes it."""
    error = batch["label"] - outputs
    return ops.mean(ops.maximum(0.9 * error, -0.1 * error), axis=-1)


row("custom_loss", data.numbers, f"task=custom task._target_={__name__}.pinball_task")(
    lambda keras: compiled(keras, lambda y, outputs: pinball_task(keras.ops, outputs, {"label": y}))
)


@row(
    "metrics_of_positions",
    data.tagged,
    "task=positions task.classes=4 task.metrics=[MeanIoU,{Recall:{class_id:1}},{AUC:{num_thresholds:20}}]",
    meant={"mean_io_u recall auc": EVALUATED},
)
def metrics_of_positions(keras: Any) -> Program:
    layers, metrics = keras.layers, keras.metrics
    tokens = keras.Input((7,), dtype="int32")
    model = keras.Sequential([tokens, layers.Embedding(16, 6), layers.Dense(4)])

    def of_probabilities(kind: Any) -> Any:
        """A metric of one-hot labels and probabilities, of positions as examples."""

        class Of(kind):
            def update_state(self, y_true, y_pred, sample_weight=None):
                del sample_weight
                label = keras.ops.one_hot(keras.ops.reshape(y_true, (-1,)), 4)
                return super().update_state(label, keras.ops.softmax(keras.ops.reshape(y_pred, (-1, 4))))

        return Of

    counted = [of_probabilities(metrics.Recall)(class_id=1, name="recall")]
    counted += [of_probabilities(metrics.AUC)(num_thresholds=20, name="auc")]
    iou = metrics.MeanIoU(4, sparse_y_pred=False, name="mean_io_u")
    program = classified(keras, model)
    program.compile["metrics"] = ["accuracy", iou, *counted]
    return program


# Inputs and outputs.

OUTPUTS = "task=several task.outputs={department:{name:classification},level:{name:regression,loss:huber,weight:0.3}}"


@row("several_outputs", data.tickets, OUTPUTS, target=("department", "level"), engines=BOTH)
def several_outputs(keras: Any) -> Program:
    layers = keras.layers
    inputs = {"words": keras.Input((6,), name="words"), "customer": keras.Input((3,), name="customer")}
    x = layers.Dense(8, "tanh", kernel_regularizer="l2")(layers.Concatenate()(list(inputs.values())))
    outputs = {"department": layers.Dense(3, name="department")(x), "level": layers.Dense(1, name="level")(x)}
    losses = {
        "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "level": keras.losses.Huber(),
    }
    judged = {
        "loss": losses,
        "loss_weights": {"department": 1.0, "level": 0.3},
        "metrics": {"department": ["accuracy"], "level": ["mae"]},
    }
    return Program(keras.Model(inputs, outputs), {"optimizer": keras.optimizers.SGD(0.1), **judged})


# Optimizers and schedules.


def optimized(keras: Any, optimizer: Any, **fit: Any) -> Program:
    """A classifier with an optimizer."""
    program = classified(keras, dense(keras), **fit)
    program.compile["optimizer"] = optimizer
    return program


DECAY = (
    "optimizer=adamw optimizer.learning_rate=0.01 optimizer.weight_decay=0.1 "
    "optimizer.groups=[{match:biases_and_norms,decay:false}]"
)


@row("weight_decay_without_biases", data.classes, DECAY)
def weight_decay_without_biases(keras: Any) -> Program:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimized(keras, optimizer)


SCHEDULE = "optimizer.schedule"
for name, overrides, optimizer in (
    ("lion", "optimizer=keras optimizer.class_name=Lion optimizer.learning_rate=0.01 +optimizer.weight_decay=0.1",
     lambda keras: keras.optimizers.Lion(0.01, weight_decay=0.1)),
    ("clipnorm", "optimizer=sgd optimizer.learning_rate=0.1 optimizer.nesterov=true optimizer.clip.norm=0.1",
     lambda keras: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.1)),
    ("global_clipnorm", "optimizer=rmsprop optimizer.learning_rate=0.01 optimizer.clip.global_norm=0.1 "
     "optimizer.centered=true optimizer.momentum=0.5 optimizer.epsilon=1e-4",
     lambda keras: keras.optimizers.RMSprop(0.01, momentum=0.5, epsilon=1e-4, centered=True, global_clipnorm=0.1)),
    ("clipvalue", "optimizer=adam optimizer.learning_rate=0.01 optimizer.clip.value=0.05",
     lambda keras: keras.optimizers.Adam(0.01, clipvalue=0.05)),
    ("cosine_with_warmup", f"{SCHEDULE}.name=cosine {SCHEDULE}.warmup_steps=2 {SCHEDULE}.decay_steps=4",
     lambda keras: keras.optimizers.SGD(
         keras.optimizers.schedules.CosineDecay(0.0, 4, warmup_target=0.1, warmup_steps=2))),
    ("staircase", f"{SCHEDULE}.name=exponential {SCHEDULE}.decay_steps=2 {SCHEDULE}.decay_rate=0.5 "
     f"{SCHEDULE}.staircase=true",
     lambda keras: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5, staircase=True))),
    ("polynomial", f"{SCHEDULE}.name=polynomial {SCHEDULE}.decay_steps=4 {SCHEDULE}.power=2 "
     f"{SCHEDULE}.final_factor=0.1",
     lambda keras: keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(0.1, 4, 0.01, power=2.0))),
    ("piecewise", f"{SCHEDULE}.name=piecewise {SCHEDULE}.boundaries=[1,3] {SCHEDULE}.factors=[1.0,0.1,0.5]",
     lambda keras: keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.01, 0.05]))),
):  # fmt: skip
    row(name, data.classes, overrides, engines=BOTH if name != "lion" else ("jax",))(
        lambda keras, optimizer=optimizer: optimized(keras, optimizer(keras))
    )

# Classes of Keras that no row above has, with options that are not their defaults. At larger rates, those that divide
# by a gradient's size make whole steps of gradients that are rounding and nothing else.
for name, rate, options in (
    ("Adadelta", 1.0, {"rho": 0.9, "weight_decay": 0.01}),
    ("Adafactor", 0.01, {"weight_decay": 0.01}),
    ("Adagrad", 0.05, {"initial_accumulator_value": 0.2}),
    ("Adam", 0.001, {"amsgrad": True}),
    ("Adamax", 0.001, {"beta_2": 0.99}),
    ("Ftrl", 0.05, {"l1_regularization_strength": 1e-4, "beta": 0.1}),
    ("Lamb", 0.01, {"weight_decay": 0.01}),
    ("Muon", 0.01, {}),
    ("Nadam", 0.001, {}),
    ("ScheduleFreeAdamW", 0.01, {"warmup_steps": 3}),
):
    words = [f"optimizer=keras optimizer.class_name={name} optimizer.learning_rate={rate}"]
    words += [f"+optimizer.{key}={str(value).lower()}" for key, value in options.items()]
    row(name.lower(), data.classes, " ".join(words))(
        lambda keras, name=name, rate=rate, options=options: optimized(
            keras, getattr(keras.optimizers, name)(rate, **options)
        )
    )

row("accumulation", data.whole_batches, "trainer.accumulate_steps=2")(
    lambda keras: optimized(keras, keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), batch_size=8)
)


@row("accumulation_with_penalty", data.whole_batches, "trainer.accumulate_steps=2")
def accumulation_with_penalty(keras: Any) -> Program:
    program = classified(keras, dense(keras, kernel_regularizer="l2"), batch_size=8)
    program.compile["optimizer"] = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    return program


@row("ema_swapped_in_evaluations", data.classes, "optimizer.ema.decay=0.9")
def ema_swapped_in_evaluations(keras: Any) -> Program:
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=False)
    return optimized(keras, keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), callbacks=[swap])


AVERAGES = "with `optimizer.ema`, evaluations during training use the averages, as with `SwapEMAWeights`"
row("ema_at_the_end", data.classes, "optimizer.ema.decay=0.9", meant={"val_loss val_accuracy": AVERAGES})(
    lambda keras: optimized(keras, keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))
)


# Callbacks that steer. With the rate of the last rows, the loss jumps.


# An epoch has 3 steps.
BY_EPOCH = f"{SCHEDULE}.name=piecewise {SCHEDULE}.boundaries=[2,5] {SCHEDULE}.factors=[1.0,0.5,0.25]"


BY_EPOCH_OF_OPTAX = "optimizer=optax optimizer._target_=tests.parity.own_step.halved optimizer.learning_rate=0.1"
OF_OPTAX = "the logged `learning_rate` has no schedule of an Optax function"


@row("learning_rate_scheduler_of_optax", data.classes, BY_EPOCH_OF_OPTAX, meant={"learning_rate": OF_OPTAX})
@row("learning_rate_scheduler", data.classes, BY_EPOCH)
def learning_rate_scheduler(keras: Any) -> Program:
    callback = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * 0.5**epoch)
    return classified(keras, dense(keras), callbacks=[callback])


STEERED = "trainer.epochs=8 optimizer.learning_rate=3.0"
STOPPED = f"{STEERED} trainer.early_stopping.patience=1"
PLATEAU = f"{SCHEDULE}.plateau.metric=eval/loss {SCHEDULE}.plateau.factor=0.5 {SCHEDULE}.plateau.patience=1"


def steered(keras: Any, callback: Any) -> Program:
    """A classifier whose training a callback steers."""
    return classified(keras, dense(keras), rate=3.0, epochs=8, callbacks=[callback])


row("early_stopping", data.classes, f"{STOPPED} trainer.early_stopping.metric=eval/loss", takes="best")(
    lambda keras: steered(keras, keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True))
)
row("early_stopping_by_the_default_metric", data.classes, STOPPED, takes="best", always=True)(
    lambda keras: steered(
        keras, keras.callbacks.EarlyStopping("val_accuracy", patience=1, mode="max", restore_best_weights=True)
    )
)
row("reduce_learning_rate_on_plateau", data.classes, f"{STEERED} {PLATEAU}")(
    lambda keras: steered(keras, keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1))
)


@row("best_checkpoint", data.classes, f"{STEERED} trainer.checkpoint.best=eval/loss", takes="best")
def best_checkpoint(keras: Any) -> Program:
    class Best(keras.callbacks.ModelCheckpoint):
        def on_train_end(self, logs=None):
            del logs
            self.model.load_weights(self.filepath)

    return steered(keras, Best("best.weights.h5", save_best_only=True, save_weights_only=True))


# Callbacks that read; `test_parity` compares the files that they write.

CSV = "{_target_:keras.callbacks.CSVLogger,filename:${tracking.run_name}.csv}"
READING = f"trainer.callbacks=[{CSV},{{_target_:tests.parity.own_step.seen,path:${{tracking.run_name}}.json}}]"


@row("callbacks", lambda: data.classes(60), f"{READING} trainer.log_every_steps=2", always=True)
def callbacks(keras: Any) -> Program:
    from tests.parity.own_step import seen  # imports JAX

    reading = [keras.callbacks.CSVLogger("callbacks.keras.csv"), seen("callbacks.keras.json")]
    program = classified(keras, dense(keras), callbacks=reading)
    program.compile["steps_per_execution"] = 2
    return program


# Steps of one's own.

STEP = "a model's own `train_step` is rejected; it is a class of `task=step` here"


@row("custom_step", data.whole_numbers, f"task=step task._target_=tests.parity.own_step.Step {WHOLE}")
@row("train_step_of_the_model", data.whole_numbers, f"task=regression {WHOLE}", meant={"rejected": STEP})
def custom_step(keras: Any) -> Program:
    import jax

    class Net(keras.Model):
        def train_step(self, state, data):
            trainable, others, variables, measured = state
            x, y = data

            def mean_loss(trainable, others):
                outputs, others = self.stateless_call(trainable, others, x, training=True)
                return keras.ops.mean(keras.ops.abs(y - outputs) ** 1.5), others

            (loss, others), gradients = jax.value_and_grad(mean_loss, has_aux=True)(trainable, others)
            trainable, variables = self.optimizer.stateless_apply(variables, gradients, trainable)
            (tracker,) = self.metrics
            measured = tracker.stateless_update_state(measured, loss)
            return {"loss": tracker.stateless_result(measured)}, (trainable, others, variables, measured)

    inputs = keras.Input((6,))
    model = Net(inputs, keras.layers.Dense(1)(inputs))
    return Program(model, {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse"})
