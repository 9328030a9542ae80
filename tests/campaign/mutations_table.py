"""The mutations: ways to break an engine, on which networks, and which variable a verification must then name."""

from dataclasses import dataclass, replace

import numpy as np

from tests.campaign import mutations_ways as ways
from tests.campaign.mutations_hooks import Way

ENGINES = ("jax", "keras_dtensor")
_KERNEL = r"(d2|dense2|head)/kernel"
_BIAS = r".*(d1|dense1)/bias"
_MOVING = ".*/moving_(mean|variance)"


@dataclass(frozen=True)
class Mutation:
    """One way to break an engine.

    Attributes:
      name: of it, which tells what is broken.
      way: what breaks it.
      networks: that it is tried on.
      settings: that it is tried in.
      path: regular expression of the variable that it is aimed at, the first that it finds; empty: none.
      named: regular expression of what the verdict must name; empty: the variable that it is aimed at, or anything.
    """

    name: str
    way: Way
    networks: tuple[str, ...]
    settings: tuple[str, ...]
    path: str = ""
    named: str = ""


def _m(name: str, way: Way, networks: str, settings: str, path: str = "", named: str = "") -> Mutation:
    """Returns a mutation; networks and settings are words."""
    return Mutation(name, way, tuple(networks.split()), tuple(settings.split()), path, named)


_GRADIENTS = (
    _m("gradient times -1", ways.turned(lambda _, g: -g), "mlp convnet tokens", "adamw", _KERNEL),
    _m("gradient times 0", ways.turned(lambda _, g: 0.0 * g), "mlp tokens", "adamw", _KERNEL),
    _m("gradient times 0.9", ways.turned(lambda _, g: 0.9 * g), "mlp convnet", "adamw", _BIAS),
    _m("gradient times 1.1", ways.turned(lambda _, g: 1.1 * g), "mlp tokens", "sgd", _KERNEL),
    _m("gradient of one of two shards lost", ways.turned(ways.half_lost), "mlp convnet tokens", "sgd", _KERNEL),
    _m("gradients of one device, not summed", ways.rows(ways.first_device), "mlp convnet tokens", "adamw sgd"),
    _m("gradients summed, not averaged", ways.rows(lambda h, size: np.full(size, h.parts)), "mlp tokens", "adamw"),
    _m("gradient of one example lost", ways.rows(ways.one_row(0.0)), "mlp convnet", "adamw"),
    _m("gradient of one example twice", ways.rows(ways.one_row(2.0)), "mlp", "adamw"),
    _m("gradients of gain and shift exchanged", ways.exchanged, "tokens", "adamw", "norm1/gamma"),
    _m(
        "gradient transposed",
        ways.turned(lambda hooks, g: hooks.ops.transpose(g)),
        "tokens",
        "adamw sgd",
        "square/kernel",
    ),
    _m("gradient shards in the wrong order", ways.turned(ways.halves_exchanged), "mlp", "adamw", _KERNEL),
    _m("gradients rounded to bfloat16", ways.rounded, "mlp", "adamw"),
    _m("clipped before the sum", ways.clipped, "mlp convnet", "sgd"),
)
_MICROBATCHES = (
    _m("a micro-batch dropped", ways.summed(lambda hooks, g, _, index: g * ways.is_first(hooks, index)), "mlp", "sgd"),
    _m(
        "a micro-batch counted twice",
        ways.summed(lambda hooks, g, _, index: g * (1.0 + ways.is_first(hooks, index))),
        "mlp convnet",
        "sgd",
    ),
    _m(
        "sums not begun again",
        ways.summed(lambda hooks, g, before, index: g + before * ways.is_first(hooks, index)),
        "mlp",
        "sgd",
    ),
    _m("micro-batches averaged twice", ways.summed(lambda hooks, g, *_: g / hooks.microbatches), "mlp tokens", "sgd"),
    _m("micro-batches exchanged", ways.batched(ways.microbatches_exchanged), "tokens convnet", "sgd"),
)
_UPDATES = (
    _m("update lost", ways.updated(ways.lost), "mlp convnet tokens", "adamw sgd", _KERNEL),
    _m("update of a bias lost", ways.updated(ways.lost), "mlp convnet", "adamw", _BIAS),
    _m("update of one shard lost", ways.updated(ways.shard_lost), "mlp", "adamw sgd", _KERNEL),
    _m("shard of an update transposed", ways.updated(ways.shard_transposed), "tokens", "sgd", "square/kernel"),
    _m("no slot written", ways.updated(ways.not_written()), "mlp tokens", "adamw sgd", _KERNEL),
    _m("second moment not written", ways.updated(ways.not_written("v")), "mlp", "adamw", _KERNEL),
    _m("moments a step stale", ways.updated(ways.stale, of_all=True), "mlp convnet", "adamw sgd"),
    _m("bias correction a step off", ways.updated(ways.next_step, of_all=True), "mlp", "adamw"),
    _m("bias correction stays at step 1", ways.ruled(frozen_step=lambda _: True), "mlp", "adamw"),
    _m("epsilon times 100", ways.ruled(epsilon=lambda now: 100 * now), "mlp", "adamw"),
    _m("weight decay skipped", ways.ruled(weight_decay=lambda _: 0.0), "mlp", "adamw"),
    _m("weight decay of biases left out", ways.updated(ways.not_decayed), "mlp", "adamw", _BIAS),
    _m("weight decay in the gradient", ways.updated(ways.decayed_in_the_gradient, of_all=True), "mlp", "adamw"),
    _m("decays of the moments exchanged", ways.ruled(beta_1=lambda _: 0.999, beta_2=lambda _: 0.9), "mlp", "adamw"),
    _m("momentum off", ways.ruled(momentum=lambda _: 0.89), "mlp convnet", "sgd"),
    _m("momentum of Nesterov", ways.ruled(nesterov=lambda now: not now), "mlp tokens", "sgd"),
    _m("constraint skipped", ways.constraint_skipped, "tokens", "adamw sgd", "d1/kernel"),
    _m("constraint along the wrong axis", ways.constraint_along_the_wrong_axis, "tokens", "adamw", "d1/kernel"),
)
_SCHEDULES = (
    _m("schedule a step early", ways.rated(lambda sound, c, step, *g: sound(c, step + 1.0, *g)), "mlp", "adamw sgd"),
    _m("schedule by another end", ways.rated(lambda sound, c, s, n, *ops: sound(c, s, 2 * n, *ops)), "mlp", "adamw"),
    _m("warm-up skipped", ways.other_schedule(warmup_steps=0), "mlp", "adamw"),
    _m("rate one hundredth off", ways.rated(lambda sound, *given: sound(*given) * 1.01), "mlp", "adamw sgd"),
    _m("clipping skipped", ways.clips(lambda _, __, gradients, ___: gradients), "mlp tokens", "sgd"),
    _m("clipped by the norm of one shard", ways.by_half_the_norm, "mlp convnet", "sgd"),
    _m(
        "each clipped by its own norm",
        ways.clips(lambda sound, c, *g: sound(replace(c, norm=c.global_norm, global_norm=None), *g)),
        "mlp",
        "sgd",
    ),
    _m("averages never written", ways.averaged(lambda _, __, old, *___: old), "mlp", "adamw"),
    _m("decay of the averages off", ways.averaged(lambda sound, _, *given: sound(0.91, *given)), "mlp", "adamw"),
)
_BATCHES = (
    _m("an example twice", ways.batched(ways.row_twice), "mlp", "adamw sgd"),
    _m("an example dropped", ways.batched(ways.row_dropped), "mlp convnet", "adamw sgd"),
    _m("examples of the last device dropped", ways.batched(ways.last_device_dropped), "mlp tokens", "adamw"),
    _m("padding counted", ways.batched(ways.padding_kept), "mlp tokens", "adamw sgd"),
    _m(
        "padding in the mean",
        ways.counted(lambda weights, parts: np.repeat(np.full(len(weights), weights.shape[1]), parts)),
        "mlp",
        "adamw",
    ),
    _m("mean of each micro-batch alone", ways.counted(ways.by_microbatch), "mlp tokens", "sgd"),
    _m("labels of the next example", ways.batched(ways.labels_of_the_next), "mlp", "sgd"),
    _m("steps of a call in another order", ways.batched(ways.steps_reversed), "mlp", "adamw sgd"),
    _m("steps before a call forgotten", lambda hooks, _: hooks.first_steps(lambda __: 0), "mlp", "adamw"),
    _m("weights of another seed", lambda hooks, _: hooks.seeds(lambda seed: seed + 1), "mlp", "adamw"),
    _m("an image darker by 1 in 256", ways.image_darker, "mlp", "adamw"),
)
_LOSSES = (
    _m("class weights skipped", ways.class_weights_skipped, "mlp", "sgd"),
    _m("loss a thousandth off", ways.loss_times(1.001), "mlp", "adamw"),
    _m("loss told wrong", ways.loss_told_wrong, "mlp", "adamw"),
    _m("regularization skipped", ways.regularized(0.0), "tokens", "adamw sgd", "d2/kernel"),
    _m("regularization by each micro-batch", ways.regularized(2.0), "tokens", "sgd", "d2/kernel"),
)
_LAYERS = (
    _m("masks of two draws shared", ways.layered("Dropout", ways.mask_of(ways.same)), "tokens", "adamw sgd"),
    _m("masks of all steps shared", ways.layered("Dropout", ways.mask_of(ways.first_step)), "convnet", "adamw"),
    _m("masks of devices shared", ways.layered("Dropout", ways.mask_of_first_device), "convnet", "adamw sgd"),
    _m("dropout left out", ways.layered("Dropout", ways.without_training), "tokens convnet", "adamw"),
    _m("batch moments of each device", ways.batch_normalized(ways.by_device), "convnet", "adamw sgd"),
    _m("batch moments as constants", ways.batch_normalized(ways.as_constants), "convnet", "adamw"),
    _m(
        "statistics of one device",
        ways.batch_normalized(statistics=ways.of_first_device),
        "convnet",
        "adamw sgd",
        named=_MOVING,
    ),
    _m("momentum of the statistics off", ways.momentum(lambda now: now - 0.01), "convnet", "adamw", named=_MOVING),
    _m("statistics never moved", ways.momentum(lambda _: 1.0), "convnet", "sgd", named=_MOVING),
    _m("epsilon of layers times 100", ways.epsilon("LayerNormalization"), "tokens", "adamw"),
    _m("gain along the wrong dim", ways.layered("LayerNormalization", ways.along_the_last_dim), "tokens", "adamw sgd"),
    _m("a leaky relu", ways.leaky_relu, "mlp convnet", "adamw"),
)
_GROUPS = (
    _m("a group's weight decay on a bias", ways.grouped(decays=lambda _: True), "mlp", "groups", _BIAS),
    _m("a group's rate left out", ways.grouped(rate=lambda _: 1.0), "mlp", "groups", ".*d1/kernel"),
    _m("logged norm of one shard", ways.logged_norm_of_one_shard, "mlp", "groups"),
)
MUTATIONS = (*(*_GRADIENTS, *_MICROBATCHES, *_UPDATES, *_SCHEDULES, *_BATCHES, *_LOSSES, *_LAYERS, *_GROUPS),)
