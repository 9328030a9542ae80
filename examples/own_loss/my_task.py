def quantile(ops, outputs, batch):
    error = batch["minutes"] - ops.squeeze(outputs, -1)
    return ops.maximum(0.9 * error, -0.1 * error)


def covered(ops, outputs, batch):
    return ops.cast(ops.less_equal(batch["minutes"], ops.squeeze(outputs, -1)), "float32")
