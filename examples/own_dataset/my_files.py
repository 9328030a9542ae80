from pathlib import Path

import numpy as np


class Files:
    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*/*.npy"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        return {"scan": np.load(file), "label": np.int32(self.classes.index(file.parent.name))}
