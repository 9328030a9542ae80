def loss(ops, outputs, batch):
    hard = ops.sparse_cross_entropy(batch["label"], outputs)
    soft = ops.cross_entropy(ops.softmax(batch["big"] / 3.0), outputs / 3.0)
    return 0.1 * hard + 0.9 * 9.0 * soft


def agrees(ops, outputs, batch):
    return ops.cast(ops.equal(ops.argmax(outputs, -1), ops.argmax(batch["big"], -1)), "float32")
