import numpy as np

rng = np.random.default_rng(1)
user = rng.normal(size=(2000, 8)).astype("float32")
film = user + 0.5 * rng.normal(size=(2000, 8)).astype("float32")
np.savez("ratings.npz", user=user, film=film)
