def loss(ops, outputs, batch):
    unit = outputs / ops.sqrt(ops.sum(ops.square(outputs), axis=-1, keepdims=True) + 1e-6)
    near = ops.matmul(unit, ops.transpose(unit)) / 0.5
    label = ops.one_hot(batch["label"], 10)
    same = ops.matmul(label, ops.transpose(label))
    log = near - ops.expand_dims(ops.logsumexp(near), -1)
    return -ops.sum(same * log, axis=-1) / ops.sum(same, axis=-1)
