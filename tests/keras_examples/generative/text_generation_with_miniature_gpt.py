"""Text by one causal block of attention."""

from tests.keras_examples import data
from tests.keras_examples.layers import encoder, positions
from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Text generation with a miniature GPT",
    trains="Adam; cross-entropy per token; text generated after each epoch",
    overrides=["optimizer=adam", "task=language_model", "task.inputs=[tokens]", "task.vocabulary=32"],
    lost=["callback: generated text, which needs a tokenizer here"],
)


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = encoder(keras, positions(keras)(layers.Embedding(32, 16)(tokens)), causal=True)
    return keras.Model(tokens, layers.Dense(outputs.units)(x))


def load():
    return data.sentences()
