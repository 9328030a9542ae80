"""Text by one causal block of attention."""

from tests.keras_examples.layers import encoder, positions
from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Text generation with a miniature GPT",
    trains="Adam; cross-entropy per token; text generated after each epoch",
    overrides=[
        "optimizer=adam",
        "task=language_model",
        "task.inputs=[tokens]",
        "task.sample.prompt=The ",
        "task.sample.tokens=12",
        "dataset=pydoc",
        "dataset.tokenizer=bytes",
        "dataset.documents=joined",
        "dataset.sequence_length=24",
        "trainer.steps_per_epoch=4",
        "trainer.limit_eval_batches=2",
    ],
    simplified=["Python's reference in place of reviews, byte by byte"],
)


def make_model(keras, input_shape, outputs):
    layers = keras.layers
    tokens = keras.Input(input_shape, dtype="int32")
    x = encoder(keras, positions(keras)(layers.Embedding(outputs.units, 16)(tokens)), causal=True)
    return keras.Model(tokens, layers.Dense(outputs.units)(x))
