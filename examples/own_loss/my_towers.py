def build(keras, inputs, outputs):
    tensors = {name: keras.Input(spec.shape, name=name) for name, spec in inputs.items()}
    query = keras.layers.Dense(32, "relu", name="query_hidden")(tensors["user"])
    candidate = keras.layers.Dense(32, "relu", name="candidate_hidden")(tensors["film"])
    query = keras.layers.Dense(16, name="query")(query)
    # Without a bias, which would add the same to all scores of a query.
    candidate = keras.layers.Dense(16, use_bias=False, name="candidate")(candidate)
    return keras.Model(tensors, {"query": query, "candidate": candidate})


def loss(ops, outputs, batch):
    scores = ops.matmul(outputs["query"], ops.transpose(ops.all_rows(outputs["candidate"])))
    scores = scores - 1e9 * (1 - ops.all_rows(batch["weight"]))  # padding is no candidate
    own = ops.sum(outputs["query"] * outputs["candidate"], axis=-1)
    return ops.logsumexp(scores) - own
