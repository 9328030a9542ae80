"""tf_keras: in a graph, as in `model.fit`, Nadam updates all variables but the first by a wrong product of momenta.

Repository: keras-team/tf-keras. Versions: tensorflow 2.21.0, tf_keras 2.21.0; Linux, CPUs.

Expected: `tf.function` does not change what an optimizer computes.

Happened: the second variable has other values from the second step on. `_u_product_counter` tells whether the product
of this step was computed for another variable. It is a Python number, so a graph has the value of its trace, and
multiplies the product once per variable instead of once per step. The product is no optimizer variable either, so
checkpoints lack it. Keras 3 fixed its Nadam in keras-core pull request 551, which mentions a bug of tf.keras.
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1", "3"

import tensorflow as tf
import tf_keras


def values_of_the_second(in_graph):
    """Returns the second variable's value after each of three steps with the gradient 1."""
    first, second = tf.Variable(1.0), tf.Variable(1.0)
    optimizer = tf_keras.optimizers.Nadam(learning_rate=0.1)
    optimizer.build([first, second])

    def step():
        optimizer.apply_gradients([(tf.constant(1.0), first), (tf.constant(1.0), second)])

    run = tf.function(step) if in_graph else step
    values = []
    for _ in range(3):
        run()
        values.append(second.numpy())
    return values


eager, graph = values_of_the_second(in_graph=False), values_of_the_second(in_graph=True)
print("eager:      ", *(f"{value:.4f}" for value in eager))
print("tf.function:", *(f"{value:.4f}" for value in graph))
sys.exit(0 if abs(eager[-1] - graph[-1]) > 1e-3 else "gone")
