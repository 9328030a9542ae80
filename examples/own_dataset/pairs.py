import numpy as np


class Pairs:
    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rng = np.random.default_rng([self.seed, index])
        label = rng.integers(4)
        image = rng.integers(0, 80, (16, 16, 1), dtype=np.uint8)
        image[8 * (label // 2) : 8 * (label // 2) + 8] += 100
        vector = rng.normal(label % 2, 0.3, 6).astype("float32")
        return {"image": image, "vector": vector, "label": np.int32(label)}


def load(train_size=2000, test_size=500):
    return {"train": Pairs(train_size, 1), "test": Pairs(test_size, 2)}
