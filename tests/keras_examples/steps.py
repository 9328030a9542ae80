"""What several of the custom steps share. Its lines count as lines that the user of such an example writes."""

import jax
from keras import ops


def update(step, state, name, loss):
    """Returns the state after one update of the model `name`, and the value of `loss(trainable, others)`."""
    optimizer = name + "_optimizer"
    (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(*state[name])
    trainable, variables = getattr(step, optimizer).stateless_apply(state[optimizer], gradients, state[name].trainable)
    model = state[name]._replace(trainable=trainable, non_trainable=others)
    return {**state, name: model, optimizer: variables}, value


def mean(values, batch):
    """Returns the mean over the examples of a batch, without its padding."""
    return ops.sum(values * batch["weight"]) / ops.sum(batch["weight"])
