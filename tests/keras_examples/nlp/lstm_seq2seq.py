"""Short sentences translated character by character by two LSTMs."""

from tests.keras_examples.spec import Spec

SPEC = Spec(
    title="Character-level recurrent sequence-to-sequence model",
    trains="RMSprop; cross-entropy per character; accuracy",
    data="pairs()",
    overrides=[
        "optimizer=rmsprop",
        "task=sequence_to_sequence",
        "task.target=target",
        "task.vocabulary=24",
        "task.padding=null",
    ],
    simplified=["characters are embedded in place of one-hot"],
)


def make_model(keras, inputs, outputs):
    layers = keras.layers
    source = keras.Input(inputs["source"].shape, dtype="int32", name="source")
    target = keras.Input(inputs["target"].shape, dtype="int32", name="target")
    _, *state = layers.LSTM(24, return_state=True)(layers.Embedding(24, 24)(source))
    x = layers.LSTM(24, return_sequences=True)(layers.Embedding(24, 24)(target), initial_state=state)
    return keras.Model({"source": source, "target": target}, layers.Dense(outputs.units)(x))
