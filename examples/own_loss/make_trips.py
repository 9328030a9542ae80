import numpy as np

rng = np.random.default_rng(1)
trips = {"km": rng.uniform(1, 30, 3000).astype("float32"), "hour": rng.uniform(0, 24, 3000).astype("float32")}
trips["minutes"] = (3 + 2 * trips["km"] + rng.gamma(2.0, 1 + trips["km"] / 4)).astype("float32")
np.savez("trips.npz", **trips)
