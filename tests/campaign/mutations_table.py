"""The mutations: ways to break an engine, on which networks, and which variable a verification must then name."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tests.campaign import mutations_layers as layers
from tests.campaign import mutations_optimizers as optimizers
from tests.campaign import mutations_resumes as resumes
from tests.campaign import mutations_ways as ways
from tests.campaign.mutations_hooks import Way

ENGINES = ("jax", "keras_dtensor")
# Networks with one class per example.
ALL = ("mlp", "convnet", "resnet", "vit", "tokens", "mixed", "outputs")
_KERNEL = r"(d2|dense2|head)/kernel"
_BIAS = r".*(d1|up)/bias"
# Networks and settings of resumed runs.
_RESUMED = ("mlp tokens", "resumed")


@dataclass(frozen=True)
class Mutation:
    """One way to break an engine.

    Attributes:
      name: of it, which tells what is broken.
      way: what breaks it.
      networks: that it is tried on.
      settings: likewise.
      path: regular expression of the variable that it is aimed at, the first that it finds; empty: none.
      named: regular expression of what the verdict must name; empty: the variable that it is aimed at, or anything.
      engines: that it is tried on.
    """

    name: str
    way: Way
    networks: tuple[str, ...]
    settings: tuple[str, ...]
    path: str = ""
    named: str = ""
    engines: tuple[str, ...] = ENGINES


@dataclass(frozen=True)
class Scale:
    """What is done to the gradient of one variable, whichever.

    Attributes:
      name: of it.
      factor: of all its entries.
      second: of the second half of them, besides.
      added: to each, as a share of the largest gradient of its layer: of what is zero in mathematics.
    """

    name: str
    factor: float = 1.0
    second: float = 1.0
    added: float = 0.0


SCALES = (
    Scale("gradient times -1", -1.0),
    Scale("gradient times 0", 0.0),
    Scale("gradient times 0.9", 0.9),
    Scale("gradient times 1.1", 1.1),
    Scale("gradient of one of two shards lost", second=0.0),
)
ADDED = Scale("gradient of zero that is not", added=0.1)


def _m(
    name: str, way: Way, networks: str, settings: str, path: str = "", named: str = "", engines: str = ""
) -> Mutation:
    """Returns a mutation; networks, settings and engines are words, `*` is all of `ALL`."""
    chosen = ALL if networks == "*" else tuple(networks.split())
    return Mutation(name, way, chosen, tuple(settings.split()), path, named, tuple(engines.split()) or ENGINES)


_GRADIENTS = (
    _m("gradients of one device, not summed", ways.rows(ways.first_device), "*", "adamw sgd"),
    _m(
        "gradients summed over the wrong axis",
        ways.rows(lambda hooks, size: ways.first_device(hooks, size) * hooks.config.mesh.axes.get("model", 1)),
        "mlp vit",
        "sgd",
    ),
    _m("gradients summed, not averaged", ways.rows(lambda h, size: np.full(size, h.parts)), "mlp tokens", "adamw"),
    _m("gradient of one example lost", ways.rows(ways.one_row(0.0)), "mlp convnet", "adamw"),
    _m("gradient of one example twice", ways.rows(ways.one_row(2.0)), "mlp resnet", "adamw"),
    _m("gradients of two variables exchanged", ways.of_gradients(ways.exchanged), "vit", "adamw", ".*query/kernel"),
    _m("gradients of gain and shift exchanged", ways.of_gradients(ways.exchanged), "tokens", "adamw", "norm1/gamma"),
    _m(
        "gradient transposed",
        ways.of_gradients(ways.turned(lambda hooks, g: hooks.ops.transpose(g))),
        "tokens",
        "adamw sgd",
        "square/kernel",
    ),
    _m(
        "gradient shards in the wrong order",
        ways.of_gradients(ways.turned(ways.halves_exchanged)),
        "mlp vit",
        "adamw",
        _KERNEL,
    ),
    _m("gradients rounded to bfloat16", ways.of_gradients(ways.rounded), "mlp resnet", "adamw"),
    _m("clipped before the sum", ways.of_gradients(ways.clipped), "mlp convnet", "sgd"),
)
_MICROBATCHES = (
    _m(
        "a micro-batch dropped",
        ways.summed(lambda hooks, g, _, index: g * ways.is_first(hooks, index)),
        "mlp vit mixed",
        "sgd",
    ),
    _m(
        "a micro-batch counted twice",
        ways.summed(lambda hooks, g, _, index: g * (1.0 + ways.is_first(hooks, index))),
        "mlp convnet",
        "sgd",
    ),
    _m(
        "sums not begun again",
        ways.summed(lambda hooks, g, before, index: g + before * ways.is_first(hooks, index)),
        "mlp resnet",
        "sgd",
    ),
    _m("micro-batches averaged twice", ways.summed(lambda hooks, g, *_: g / hooks.microbatches), "mlp tokens", "sgd"),
    _m("micro-batches exchanged", ways.batched(ways.microbatches_exchanged), "vit tokens convnet", "sgd"),
)
_UPDATES = (
    _m("update lost", ways.updated(ways.lost), "*", "adamw sgd", _KERNEL),
    _m("update of a bias lost", ways.updated(ways.lost), "mlp convnet vit", "adamw", ".*(d1|dense1|up)/bias"),
    _m("update of one shard lost", ways.updated(ways.shard_lost), "mlp resnet", "adamw sgd", _KERNEL),
    _m("shard of an update transposed", ways.updated(ways.shard_transposed), "tokens", "sgd", "square/kernel"),
    _m("no slot written", ways.updated(ways.not_written()), "mlp tokens", "adamw sgd", _KERNEL),
    _m("first moment not written", ways.updated(ways.not_written("m")), "mlp vit", "adamw", _KERNEL),
    _m("second moment not written", ways.updated(ways.not_written("v")), "mlp vit", "adamw", _KERNEL),
    _m("moments a step stale", ways.updated(ways.stale, of_all=True), "mlp convnet", "adamw sgd"),
    _m("moments of one variable a step stale", ways.updated(ways.stale), "mlp mixed", "adamw sgd", _KERNEL),
    _m("bias correction a step off", ways.updated(ways.next_step, of_all=True), "mlp resnet", "adamw"),
    _m("bias correction stays at step 1", ways.ruled(frozen_step=lambda _: True), "mlp vit", "adamw"),
    _m("epsilon times 100", ways.ruled(epsilon=lambda now: 100 * now), "mlp vit", "adamw"),
    _m("epsilon of rmsprop times 100", ways.ruled(epsilon=lambda now: 100 * now), "mlp", "rmsprop"),
    _m("epsilon inside the root", ways.updated(ways.epsilon_in_the_root, of_all=True), "mlp tokens", "adamw"),
    _m("weight decay skipped", ways.ruled(weight_decay=lambda _: 0.0), "mlp vit", "adamw"),
    _m("weight decay twice", ways.ruled(weight_decay=lambda now: 2 * now), "mlp", "adamw"),
    _m("weight decay of biases left out", ways.updated(ways.not_decayed), "mlp vit", "adamw", ".*(d1|up)/bias"),
    _m("weight decay by the rate twice", ways.updated(ways.decayed_by_rate_twice, of_all=True), "mlp", "adamw"),
    _m("weight decay in the gradient", ways.updated(ways.decayed_in_the_gradient, of_all=True), "mlp", "adamw"),
    _m("decays of the moments exchanged", ways.ruled(beta_1=lambda _: 0.999, beta_2=lambda _: 0.9), "mlp", "adamw"),
    _m("decay of the second moment off", ways.ruled(beta_2=lambda _: 0.99), "mlp", "adamw"),
    _m("momentum off", ways.ruled(momentum=lambda _: 0.89), "mlp convnet", "sgd"),
    _m("momentum of Nesterov", ways.ruled(nesterov=lambda now: not now), "mlp tokens", "sgd"),
    _m("momentum dampened", ways.updated(ways.dampened, of_all=True), "mlp", "sgd"),
    _m("mean square not centerd", ways.updated(ways.not_centered, of_all=True), "mlp", "rmsprop"),
    _m("decay of the mean square off", ways.ruled(rho=lambda _: 0.89), "mlp", "rmsprop"),
    _m("a weight read a step late", ways.read_a_step_late, "mlp vit", "sgd", ".*(d1|up)/kernel"),
    _m("constraint skipped", ways.constraint_skipped, "tokens", "adamw sgd", "d1/kernel"),
    _m("constraint along the wrong axis", ways.constraint_along_the_wrong_axis, "tokens", "adamw", "d1/kernel"),
    _m("constraint before the update", ways.constraint_before_the_update, "tokens", "adamw", "d1/kernel"),
)
_SCHEDULES = (
    _m(
        "schedule a step early",
        ways.rated(lambda sound, c, step, *g: sound(c, step + 1.0, *g)),
        "mlp vit",
        "adamw sgd",
    ),
    _m("schedule by another end", ways.rated(lambda sound, c, s, n, *ops: sound(c, s, 2 * n, *ops)), "mlp", "adamw"),
    _m("warm-up skipped", ways.other_schedule(warmup_steps=0), "mlp", "adamw"),
    _m("staircase a slope", ways.other_schedule(staircase=False), "mlp", "rmsprop"),
    _m("rate one hundredth off", ways.rated(lambda sound, *given: sound(*given) * 1.01), "mlp resnet", "adamw sgd"),
    _m("clipping skipped", ways.clips(lambda _, __, gradients, ___: gradients), "mlp tokens", "sgd rmsprop"),
    _m("clipped by the norm of one device", ways.by_half_the_norm, "mlp convnet", "sgd"),
    _m(
        "each clipped by its own norm",
        ways.clips(lambda sound, c, *g: sound(replace(c, norm=c.global_norm, global_norm=None), *g)),
        "mlp vit",
        "sgd",
    ),
    _m(
        "clipped by the norm of all",
        ways.clips(lambda sound, c, *g: sound(replace(c, norm=None, global_norm=c.norm), *g)),
        "mlp",
        "rmsprop",
    ),
    _m("averages never written", ways.averaged(lambda _, __, old, *___: old), "mlp vit", "adamw"),
    _m("decay of the averages off", ways.averaged(lambda sound, _, *given: sound(0.91, *given)), "mlp", "adamw"),
    _m(
        "averages not begun with the weights",
        ways.averaged(lambda _, decay, old, weight, *__: old * decay + weight * (1.0 - decay)),
        "mlp",
        "rmsprop",  # the rate of adamw's first step is 0, so that it moves no weights
    ),
)
_BATCHES = (
    _m("an example twice", ways.batched(ways.row_twice), "mlp vit", "adamw sgd"),
    _m("an example dropped", ways.batched(ways.row_dropped), "mlp convnet", "adamw sgd"),
    _m("examples of the last device dropped", ways.batched(ways.last_device_dropped), "mlp tokens", "adamw"),
    _m("padding counted", ways.batched(ways.padding_kept), "mlp vit tokens", "adamw sgd"),
    _m(
        "padding in the mean",
        ways.counted(lambda weights, parts: np.repeat(np.full(len(weights), weights.shape[1]), parts)),
        "mlp vit",
        "adamw",
    ),
    _m("mean of each micro-batch alone", ways.counted(ways.by_microbatch), "mlp tokens", "sgd"),
    _m(
        "last batch weighed as the first",
        ways.counted(lambda weights, parts: np.repeat(np.full(len(weights), weights[0].sum()), parts)),
        "mlp",
        "adamw",
    ),
    _m("labels of the next example", ways.batched(ways.labels_of_the_next), "mlp mixed", "sgd"),
    _m("steps of a call in another order", ways.batched(ways.steps_reversed), "mlp resnet", "adamw sgd"),
    _m("last step of a call lost", ways.batched(ways.last_step_lost), "mlp convnet", "adamw"),
    _m("steps before a call forgotten", ways.no_steps_before, "mlp vit", "adamw"),
    _m("weights of another seed", ways.another_seed, "mlp mixed", "adamw"),
    _m("inputs exchanged", ways.inputs_exchanged, "mixed", "adamw sgd"),
    _m("an image darker by 1 in 256", ways.image_darker, "mlp mixed", "adamw"),
)
_LOSSES = (
    _m("label smoothing skipped", layers.not_smoothed, "mlp resnet", "adamw"),
    _m("class weights skipped", layers.loss_with(_weights=None), "mlp mixed", "sgd"),
    _m("loss a thousandth off", layers.loss_times(1.001), "mlp", "adamw"),
    _m("loss told wrong", layers.loss_told_wrong, "mlp", "adamw"),
    _m("a loss weight dropped", layers.loss_weight_dropped, "outputs", "several"),
    _m("an output's labels not divided by their number", layers.labels_by_examples, "outputs", "several"),
    _m("an ignored label counted", layers.ignored_counted, "outputs", "several"),
    _m("regularization skipped", layers.regularized(0.0), "tokens", "adamw sgd", "d2/kernel"),
    _m("regularization by each device", layers.regularized_by_each_device, "tokens", "adamw", "d2/kernel"),
    _m("regularization by each micro-batch", layers.regularized(2.0), "tokens", "sgd", "d2/kernel"),
    _m("an ignored index counted in the loss", layers.ignored_in_the_loss, "segments", "adamw sgd"),
    _m("an ignored index counted in the metrics", layers.ignored_in_the_metrics, "segments", "adamw sgd"),
    _m("an ignored index counted in the mean", layers.ignored_in_the_count, "segments", "adamw sgd"),
)


_CLASSES = (
    _m("norm of one shard in Muon", optimizers.norm_of_one_shard_in_muon, "mlp", "muon", engines="jax"),
    _m("products of each shard in Muon", optimizers.orthogonalized_by_shard, "mlp", "muon", engines="jax"),
)
_GROUPS = (
    _m("a group's weight decay on a bias", optimizers.grouped(decays=lambda _: True), "mlp vit", "groups", _BIAS),
    _m(
        "a group's weight decay on a bias, with Lamb",
        optimizers.grouped(decays=lambda _: True),
        "mlp",
        "lamb",
        _BIAS,
        engines="jax",
    ),
    _m("a group's rate left out", optimizers.grouped(rate=lambda _: 1.0), "mlp vit", "groups", ".*(d1|up)/kernel"),
    _m(
        "a frozen group trained a step early",
        optimizers.grouped(freeze_steps=lambda now: now - 1),
        "mlp vit",
        "groups",
        _KERNEL,
    ),
    _m("frozen variables in the norm that clips", optimizers.frozen_in_the_norm, "mlp", "groups"),
)
_NORMS = (
    _m("clipped by own norms of one shard", optimizers.clipped_by_own_shards, "mlp", "rmsprop"),
    _m("logged norm of one shard", optimizers.logged_norm_of_one_shard, "mlp vit", "groups"),
)
_RESUMES = (
    _m("schedule a step off after a resume", ways.rated(lambda sound, c, s, *g: sound(c, s + 1.0, *g)), *_RESUMED),
    _m("steps counted from the resume", resumes.steps_from_the_resume, *_RESUMED),
    _m("plateau forgotten by a resume", resumes.reduced(resumes.forgotten), *_RESUMED),
    _m("patience begun again by a resume", resumes.reduced(resumes.waits_again), *_RESUMED),
    _m("reductions lost by a resume", resumes.reduced(resumes.reductions_lost), *_RESUMED),
    _m("moments lost by a resume", resumes.loaded(resumes.no_moments), *_RESUMED),
    _m("averages begun again by a resume", resumes.loaded(resumes.averages_of_now), *_RESUMED),
)
_LAYERS = (
    _m("masks of two draws shared", layers.layered("Dropout", layers.mask_of(layers.same)), "tokens", "adamw sgd"),
    _m(
        "masks of all steps shared",
        layers.layered("Dropout", layers.mask_of(layers.first_step)),
        "vit convnet",
        "adamw",
    ),
    _m("masks of micro-batches shared", layers.layered("Dropout", layers.mask_of(layers.whole_steps)), "vit", "sgd"),
    _m("masks of devices shared", layers.layered("Dropout", layers.mask_of_first_device), "vit convnet", "adamw sgd"),
    _m("dropout not scaled up", layers.layered("Dropout", layers.not_scaled_up), "vit convnet", "adamw"),
    _m("dropout of another rate", layers.attribute("Dropout", "rate", lambda now: 0.9 * now), "vit", "adamw"),
    _m("dropout left out", layers.layered("Dropout", layers.without_training), "tokens convnet", "adamw"),
    _m("batch moments of each device", layers.batch_normalized(layers.by_device), "convnet resnet mixed", "adamw sgd"),
    _m("batch moments as constants", layers.batch_normalized(layers.as_constants), "resnet mixed", "adamw"),
    _m(
        "moving statistics in training",
        layers.layered("BatchNormalization", layers.without_training),
        "convnet resnet mixed",
        "adamw",
    ),
    _m(
        "statistics of one device",
        layers.batch_normalized(statistics=layers.of_first_device),
        "convnet mixed",
        "adamw sgd",
        named=".*/moving_(mean|variance)",
    ),
    _m(
        "moving variance unbiased",
        layers.batch_normalized(statistics=layers.spread_out),
        "convnet mixed",
        "adamw",
        named=".*/moving_variance",
    ),
    _m(
        "momentum of the statistics off",
        layers.attribute("BatchNormalization", "momentum", lambda now: now - 0.01),
        "convnet mixed",
        "adamw",
        named=".*/moving_(mean|variance)",
    ),
    _m(
        "statistics moved twice a step",
        layers.attribute("BatchNormalization", "momentum", lambda now: now * now),
        "resnet",
        "adamw",
        named=".*/moving_(mean|variance)",
    ),
    _m(
        "statistics never moved",
        layers.attribute("BatchNormalization", "momentum", lambda _: 1.0),
        "convnet mixed",
        "sgd",
        named=".*/moving_(mean|variance)",
    ),
    _m(
        "own statistics of one device",
        layers.layered("Running", layers.running_of_first_device),
        "mixed",
        "adamw sgd",
        named="running/mean",
    ),
    _m("epsilon of batches times 100", layers.epsilon("BatchNormalization"), "convnet resnet", "adamw"),
    _m("epsilon of layers times 100", layers.epsilon("LayerNormalization"), "vit tokens", "adamw"),
    _m("epsilon of groups times 100", layers.epsilon("GroupNormalization"), "mixed", "adamw"),
    _m(
        "gain along the wrong dim",
        layers.layered("LayerNormalization", layers.along_the_last_dim),
        "tokens",
        "adamw sgd",
    ),
    _m("attention not scaled", layers.layered("Mix", layers.attention_not_scaled), "vit", "adamw"),
    _m("a rough gelu", layers.activation("gelu", layers.rough_gelu), "vit tokens", "adamw"),
    _m("a leaky relu", layers.activation("relu", layers.leaky), "mlp convnet", "adamw"),
)
MUTATIONS = (
    *(*_GRADIENTS, *_MICROBATCHES, *_UPDATES, *_SCHEDULES, *_BATCHES, *_LOSSES, *_LAYERS),
    *(*_CLASSES, *_GROUPS, *_NORMS, *_RESUMES),
)
