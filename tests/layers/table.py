"""The table: layers.txt has a call of each layer as a user writes it, and the shapes of its inputs.

A line is `call @ shape; shape`, of x, y and z. Before the shape of whole numbers below 7 stands `i7:`, before that of
numbers between 0 and 1 `u:`. After ` ! ` are words of the line that rejects the call. A line that begins with `~`
computes in bfloat16.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FUNCTIONS = """
elu exponential gelu hard_sigmoid linear mish relu selu sigmoid softmax softplus softsign tanh celu hard_shrink
hard_silu hard_tanh leaky_relu log_sigmoid log_softmax relu6 silu soft_shrink sparse_plus sparse_sigmoid sparsemax
squareplus tanh_shrink
"""
# Classes of `keras.layers` without a call, and why.
NAMED = {
    "Layer": "the base of all layers",
    "InputLayer": "what `keras.Input` makes: in every model",
    "Wrapper": "the base of wrappers, without arithmetic",
    "Hashing": "Keras computes it in TensorFlow",
    "HashedCrossing": "Keras computes it in TensorFlow",
    "IntegerLookup": "Keras computes it in TensorFlow",
    "StringLookup": "takes words: a dataset's arrays hold numbers",
    "TextVectorization": "takes words: a dataset's arrays hold numbers",
    "FlaxLayer": "wraps a module of Flax, which is no dependency",
    "TorchModuleWrapper": "wraps a module of PyTorch, which JAX can't compute",
    "TFSMLayer": "wraps a SavedModel of TensorFlow, which JAX can't compute",
    "MaxNumBoundingBoxes": "pads lists of bounding boxes, and passes images on as they are",
    "RandomCrop": "stock Keras can't train it here",
    "RandomElasticTransform": "stock Keras can't train it here",
    "AutoContrast": "stock Keras's gradient of it is no number",
    "Equalization": "stock Keras can't train it here",
}


@dataclass(frozen=True)
class Tensor:
    """An input: its shape without the batch, and its kind: `normal`, `unit`, or the number that integers are below."""

    shape: tuple[int, ...]
    kind: str = "normal"


@dataclass(frozen=True)
class Case:
    call: str
    inputs: tuple[Tensor, ...]
    refused: str
    is_bfloat16: bool

    @property
    def layers(self) -> list[str]:
        return re.findall(r"\bL\.(\w+)", self.call)


def _tensor(text: str) -> Tensor:
    kind, _, sizes = text.strip().rpartition(":")
    shape = tuple(map(int, sizes.split(",")))
    return Tensor(shape, {"": "normal", "u": "unit"}.get(kind, kind.removeprefix("i")))


def _case(line: str) -> Case:
    call, _, rest = line.removeprefix("~").partition(" @ ")
    shapes, _, refused = rest.partition(" ! ")
    return Case(call, tuple(map(_tensor, shapes.split(";"))), refused, line.startswith("~"))


PARTS: dict[str, list[Case]] = {}
for part in Path(__file__).with_name("layers.txt").read_text().removeprefix("# ").split("\n\n# "):
    title, *lines = part.strip().splitlines()
    PARTS[title] = [_case(line) for line in lines]
PARTS["Dense, embedding, activations"] += [_case(f'L.Activation("{name}")(x) @ 3,4') for name in _FUNCTIONS.split()]
