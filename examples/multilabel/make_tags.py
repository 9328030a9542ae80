import numpy as np

rng = np.random.default_rng(1)
features = rng.normal(size=(3000, 16)).astype("float32")
tags = (features @ rng.normal(size=(16, 5)) + 0.5 * rng.normal(size=(3000, 5)) > 1).astype("int32")
np.savez("tags.npz", features=features, tags=tags)
