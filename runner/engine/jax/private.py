"""The private interfaces of JAX and Keras 3 that the engine leans on, each with what breaks without it.

Written against jax 0.10.2 and keras 3.15.1; tests/engine/test_jax_private.py says which of them a later version lacks.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax._src import xla_bridge
from jax._src.interpreters import ad
from jax._src.lib import _jax
from jax.extend.core import Jaxpr, JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr
from keras.src import backend
from keras.src.models import Functional
from keras.src.utils import module_utils, naming

Function = Callable[..., jax.Array]
_make_gloo = _jax.make_gloo_tcp_collectives

# Lists that Keras keeps beside a layer's attributes; going through them would give a variable a second path.
BOOKKEEPING = (
    "_layers",
    "_trainable_variables",
    "_non_trainable_variables",
    "_seed_generators",
    "_metrics",
    "_functional",
    "_operations",
    "_inbound_nodes",
    "_outbound_nodes",
    "_tracker",
)


def devices_are_made() -> bool:
    """Tells whether this process has made its JAX devices.

    Without it a second engine in a process, as tests make, can't tell that the number of CPU devices is settled; JAX
    raises where it is set again.
    """
    made: bool = xla_bridge.backends_are_initialized()
    return made


def bind_gloo(address: str) -> None:
    """Has the collectives of several processes' CPUs listen at an address.

    Without it they listen at what the machine's name stands for, which may be the loopback device.

    Args:
      address: of this process, as the others reach it.
    """
    _jax.make_gloo_tcp_collectives = functools.partial(_make_gloo, hostname=address)


def is_functional(layer: object) -> bool:
    """Tells whether a layer is a model of layers that have names of their own, `keras.Sequential` or functional.

    `keras.Model(inputs, outputs)` makes an object of this class, which has no public name. Without it such a model's
    variables can't be told by the names of its layers.
    """
    return isinstance(layer, keras.Sequential | Functional)


def reset_layer_names() -> None:
    """Begins the numbers of unnamed layers again, so that every build of a model gives the same paths.

    `keras.utils.clear_session` does it too, and throws away the state of models that live.
    """
    naming.reset_uids()


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns a model's layers with those inside of them; `Model.layers` has the outer ones alone."""
    return [
        layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.layers.InputLayer)
    ]


def operands(model: keras.Model) -> list[object]:
    """Returns what the operations of a functional model, and of those inside of it, are called with.

    Without it nobody sees an array that a builder computed and then put into an operation, as `x - ops.array(mean)`.
    """
    functional = [each for each in (model, *all_layers(model)) if isinstance(each, Functional)]
    operations = [operation for each in functional for operation in each.operations]
    nodes = [node for operation in operations for node in operation._inbound_nodes]
    return [value for node in nodes for value in jax.tree.leaves((node.arguments.args, node.arguments.kwargs))]


def has_hub(model: keras.Model) -> bool:
    """Tells whether KerasHub made a part of a model, whose variables then go by Keras's own paths."""
    return any(type(layer).__module__.startswith("keras_hub.") for layer in all_layers(model))


def training_argument(model: keras.Model, *, training: bool) -> dict[str, bool]:
    """Returns what a model's call is told of training: nothing where its own `call` does not take it.

    Keras's `fit` asks so too. Without it a subclassed `call(self, x)` raises TypeError.
    """
    return {"training": training} if model._call_has_training_arg else {}


def release(variable: keras.Variable) -> None:
    """Lets go of a variable's value; it keeps its shape and dtype.

    Without it a model whose state the engine holds, and gives again each step, would hold its first values beside it.
    """
    variable._value = jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype)


def set_value(variable: keras.Variable, value: jax.Array) -> None:
    """Gives a variable a value, also one that has none, as after a traced build.

    `Variable.assign` compares with what is there in some versions.
    """
    variable._value = value


def set_dtype(variable: keras.Variable, dtype: str) -> None:
    """Gives a variable another dtype, and its value with it.

    Without it a model's weights are bfloat16 only under a policy that draws them in it, and keeps statistics so too.
    """
    variable._dtype = dtype
    if isinstance(variable._value, jax.ShapeDtypeStruct):
        release(variable)
    elif isinstance(variable._value, jax.Array) and not isinstance(variable._value, jax.core.Tracer):
        variable._value = variable._value.astype(dtype)


@contextmanager
def in_float32(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Lets Keras compute with values of variables in float32, where they are narrower, while the context lasts.

    Without it Keras rounds what it is given of a variable to the variable's own dtype.
    """
    before = [variable._dtype for variable in variables]
    for variable in variables:
        variable._dtype = str(jnp.promote_types(variable._dtype, jnp.float32))
    try:
        yield
    finally:
        for variable, dtype in zip(variables, before, strict=True):
            variable._dtype = dtype


def made_trainable(model: keras.Model) -> set[int]:
    """Returns the ids of variables that layers made to be trained, frozen or not; the others are their statistics.

    Without it a frozen weight can't be told from what a layer keeps.
    """
    return {id(variable) for layer in [model, *all_layers(model)] for variable in layer._trainable_variables}


def evaluated(equation: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    """Computes one equation of a trace, as `jax.core.eval_jaxpr` computes all of them.

    Without it what a trace says of one variable can't be computed apart from the others.

    Args:
      equation: of a jaxpr.
      values: of what it takes.
    """
    with equation.ctx.manager:
        found = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
    return found if equation.primitive.multiple_results else [found]


def without_unused(jaxpr: Jaxpr) -> tuple[Jaxpr, Sequence[bool]]:
    """Returns a trace without all that its results don't come of, and which of its inputs are left.

    Without it a step's random generators could not be followed apart from its weights, nor be told which weights a
    loss depends on.
    """
    found: tuple[Jaxpr, Sequence[bool]] = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return found


@contextmanager
def calls_replaced(
    layers: Sequence[keras.Layer], make: Callable[[keras.Layer, Callable[..., object]], Callable[..., object]]
) -> Iterator[None]:
    """Replaces the `call` of layers while the context lasts.

    Args:
      layers: of a model.
      make: (layer, its own call) -> what is called in its place.
    """
    try:
        for layer in layers:
            # Past Keras's own __setattr__, which would track the function.
            object.__setattr__(layer, "call", make(layer, layer.call))
        yield
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


@contextmanager
def _replaced(holder: Any, name: str, make: Callable[[Function], Function]) -> Iterator[None]:
    plain = getattr(holder, name)
    setattr(holder, name, make(plain))
    try:
        yield
    finally:
        setattr(holder, name, plain)


def dropout_replaced(make: Callable[[Function], Function]) -> AbstractContextManager[None]:
    """Replaces the operation by which Keras's layers and `keras.random` drop units out while the context lasts.

    Without it the single device of a comparison would draw other masks than the mesh.

    Args:
      make: (the function of inputs, rate, noise shape and seed) -> what is called in its place.
    """
    return _replaced(backend.random, "dropout", make)


def take_replaced(make: Callable[[Function], Function]) -> AbstractContextManager[None]:
    """Replaces the operation by which Keras's layers take rows of a table while the context lasts.

    Without it the gradients of a bfloat16 table are added up in bfloat16, see `runner.engine.jax.layers.rows`.

    Args:
      make: (the function of a table, indices and an axis) -> what is called in its place.
    """
    return _replaced(backend.numpy, "take", make)


def attention_replaced(make: Callable[[Function], Function]) -> AbstractContextManager[None]:
    """Replaces the operation by which Keras's layers attend while the context lasts.

    Without it a mesh may fail in cuDNN's kernel on GPUs, see `runner.engine.jax.layers.fused_attention`.

    Args:
      make: (the function of queries, keys, values and keywords) -> what is called in its place.
    """
    return _replaced(backend.nn, "dot_product_attention", make)


def bernoulli_replaced(make: Callable[[Sequence[int]], jax.Array]) -> AbstractContextManager[None]:
    """Answers `jax.random.bernoulli`, of which Keras's dropout has its masks, while the context lasts.

    Args:
      make: shape -> what is answered.
    """
    return _replaced(jax.random, "bernoulli", lambda _: lambda key, p, shape: make(shape))  # noqa: ARG005


@contextmanager
def kernel_gradients_of(
    prepare: Callable[[jax.Array, jax.Array, lax.ConvDimensionNumbers], tuple[jax.Array, jax.Array]],
) -> Iterator[None]:
    """Hands what the gradient of a convolution's kernel is made of through a function while the context lasts.

    Every convolution is the one primitive, by whatever function it was made, and its gradients come of the one rule
    that this table has for it. Without it kernel gradients are wrong on some meshes, see
    `runner.engine.jax.layers.kernel_gradient`.

    Args:
      prepare: (images, gradient of the results, dims) -> images and gradient, as the rule is to take them.
    """
    plain = ad.fancy_transposes[lax.conv_general_dilated_p]

    def rule(gradient: jax.Array, images: jax.Array, kernel: object, **parameters: Any) -> None:
        if isinstance(kernel, ad.GradAccum) and type(gradient) is not ad.Zero:
            images, gradient = prepare(images, gradient, parameters["dimension_numbers"])
        plain(gradient, images, kernel, **parameters)

    ad.fancy_transposes[lax.conv_general_dilated_p] = rule
    try:
        yield
    finally:
        ad.fancy_transposes[lax.conv_general_dilated_p] = plain


@contextmanager
def tensorflow_unimported() -> Iterator[None]:
    """Keeps Keras from importing TensorFlow while the context lasts, unless it is imported already.

    To serialize a model, Keras asks of every object whether it is one of TensorFlow's, and imports TensorFlow to
    know that. No object can be, as long as nothing has imported it. Without this, saving a model costs 3.5 s of CPU
    time and 450 MB more.
    """
    library = module_utils.tensorflow
    if "tensorflow" in sys.modules:
        yield
        return
    before = library._available
    library._available = False
    try:
        yield
    finally:
        library._available = before
