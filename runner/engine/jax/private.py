"""Private interfaces of JAX and Keras 3 that the engine depends on. Each docstring says what breaks without it.

Written against jax 0.10.2 and 0.12.0.1, and keras 3.15.1; tests/engine/test_jax_private.py names those that a later
version lacks.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax._src.cudnn import fused_attention_stablehlo
from jax._src.interpreters import ad
from jax._src.lib import _jax
from jax._src.lib.mlir.dialects import hlo
from jax.extend.core import Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.models import Functional
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.utils import module_utils, naming

from runner.errors import invalid
from runner.task.compiled import Compile

ArrayFunction = Callable[..., jax.Array]
_OF_TENSORFLOW = "1.15.0"  # what jax 0.10.2 writes
# JAX's own, so that a second call of `bind_gloo` does not wrap the first.
_make_gloo = _jax.make_gloo_tcp_collectives

# Lists that Keras keeps next to a layer's attributes; walking them would give a variable a second path.
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


@contextmanager
def _replaced(holder: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(holder, name)
    setattr(holder, name, make(original))
    try:
        yield
    finally:
        setattr(holder, name, original)


def readable_by_tensorflow() -> AbstractContextManager[None]:
    """Lets JAX write programs in a version of StableHLO that TensorFlow 2.21 reads.

    Without it TensorFlow can't load the export of a model on JAX 0.12.
    """

    def make(chosen: Callable[[Any], str]) -> Callable[[Any], str]:
        return lambda kind: str(hlo.get_smaller_version(chosen(kind), _OF_TENSORFLOW))

    return _replaced(hlo, "get_version_from_compatibility_requirement", make)


def bind_gloo(address: str) -> None:
    """Makes gloo, which communicates between CPU processes, listen at an address of this process.

    Without it gloo listens at the address that the machine's name resolves to, which may be the loopback device.
    """
    _jax.make_gloo_tcp_collectives = functools.partial(_make_gloo, hostname=address)


def is_functional(layer: object) -> bool:
    """Returns whether a layer is a Sequential or functional model, whose class has no public name.

    Without it the paths of its variables could not be made of the names of its layers.
    """
    return isinstance(layer, keras.Sequential | Functional)


def reset_layer_names() -> None:
    """Restarts the numbers of unnamed layers, without which a second build of a model would have other paths.

    `keras.utils.clear_session` restarts them too, but discards the state of other models.
    """
    naming.reset_uids()


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns a model's layers and, recursively, theirs, which `Model.layers` lacks."""
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if not isinstance(layer, keras.layers.InputLayer)]


def has_keras_hub_layer(model: keras.Model) -> bool:
    """Without it the variables' paths could not be those that KerasHub's users know."""
    return any(type(layer).__module__.startswith("keras_hub.") for layer in all_layers(model))


def training_argument(model: keras.Model, *, training: bool) -> dict[str, bool]:
    """Returns the keyword `training` if a model's call takes it; without it, `call(self, x)` would raise."""
    if model._call_has_training_arg:
        return {"training": training}
    return {}


def take_compile(model: keras.Model, target: str) -> Compile:
    """Takes what a model was compiled with off it; without it Keras's own code could not compute loss and metrics.

    Raises ConfigError if it is not compiled, or for eager steps.
    """
    if not model.compiled or model.run_eagerly:
        problem = "returns a model that is not compiled, or with run_eagerly=True"
        raise invalid("model._target_", target, problem=problem, fix="compile it, or set another task")
    taken = Compile(model.optimizer, model._compile_loss, model._compile_metrics, _mask_rows)
    model.compiled = False
    model.optimizer = model._compile_loss = model._compile_metrics = model._loss_tracker = None
    return taken


def _mask_rows(outputs: Any, is_real: jax.Array) -> None:
    for output in jax.tree.leaves(outputs):
        shape = output.shape[:-1] or output.shape
        is_counted = jnp.broadcast_to(is_real.reshape(-1, *[1] * (len(shape) - 1)), shape)
        mask = backend.get_keras_mask(output)
        backend.set_keras_mask(output, is_counted if mask is None else is_counted & mask)


def as_float32(output: jax.Array) -> jax.Array:
    """Returns an output in float32 with its mask, without which Keras would weight a loss otherwise."""
    converted = output.astype(jnp.float32)
    mask = backend.get_keras_mask(output)
    if mask is not None:
        backend.set_keras_mask(converted, mask)
    return converted


def forget_added_losses(model: keras.Model) -> None:
    """Makes all layers forget the losses that they added in an earlier trace.

    A layer knows its losses by the ids of their tracers, and removes these when it is called again. A tracer of this
    trace may have the id of one that is gone. Without it, the loss of another layer is then lost: one of 30, in 3 of
    600 traces of a small model.
    """
    model._clear_losses()


def inputs_of(model: keras.Model) -> Any:
    """Returns the symbolic argument of a Sequential or functional model, one tensor or several.

    `Sequential.input` raises unless the model was called on such a tensor. Without this, the layers of a model that a
    custom step calls with arrays alone could not be listed.
    """
    if isinstance(model, keras.Sequential):
        return model.inputs[0]
    return model.input


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Without it the state of an optimizer that a user's code made could not be sharded as its variables are."""
    return list(getattr(optimizer, "_trainable_variables", []))


def release(variable: keras.Variable) -> None:
    """Releases a variable's value, without which the model would hold its initial values beside the engine's state."""
    variable._value = jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype)


def initializer_of(variable: keras.Variable) -> object:
    """Returns the initializer of a variable that a stateless scope has left without a value."""
    return variable._initializer


def take_value(variable: keras.Variable) -> Callable[[], jax.Array]:
    """Releases a variable's value, and returns a function that returns it, or draws it if there is none yet.

    Without it all variables of a model would have to be in the memory of one device before they are sharded.
    """
    shape = tuple(variable.shape)
    dtype = variable.dtype
    initializer = variable._initializer
    value = variable._value
    release(variable)
    if value is None:
        return lambda: initializer(shape, dtype=dtype)
    return lambda: value


def set_value(variable: keras.Variable, value: jax.Array) -> None:
    """Sets a variable's value, also if it has none: `Variable.assign` reads the old value in some versions."""
    variable._value = value


def take_uninitialized() -> list[keras.Variable]:
    """Forgets and returns the variables that were created in stateless scopes and have no values yet.

    Without it, the next stateless scope of this thread would initialize them.
    """
    created = list(global_state.get_global_attribute("uninitialized_variables") or ())
    global_state.set_global_attribute("uninitialized_variables", [])
    return created


@contextmanager
def kept_seed_generator() -> Iterator[None]:
    """Forgets the global seed generator that Keras makes in the context, if it does.

    Without it, the generator of a build that is given up would draw in the next build, and all later default seeds
    would be others.
    """
    before = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    try:
        yield
    finally:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, before)


def initialize(variable: keras.Variable) -> None:
    """Without it the random generators of a model that is built in a stateless scope would have no state."""
    variable._deferred_initialize()


def build_abstractly(optimizer: keras.Optimizer, variables: Sequence[keras.Variable]) -> None:
    """Builds an optimizer for variables that may have no values; its own variables get none.

    Without it the whole optimizer state would be in the memory of one device before it is sharded.
    """
    before = [variable._value for variable in variables]

    def build(values: Sequence[jax.Array]) -> None:
        # Some optimizers copy the variables' values as they are built.
        for variable, value in zip(variables, values, strict=True):
            set_value(variable, value)
        optimizer.build(list(variables))

    shapes = [jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype) for variable in variables]
    try:
        jax.eval_shape(build, shapes)
    finally:
        for variable, value in zip(variables, before, strict=True):
            set_value(variable, value)
    for variable in optimizer.variables:
        if isinstance(variable._value, jax.core.Tracer):
            release(variable)


def set_dtype(variable: keras.Variable, dtype: str) -> None:
    """Sets the dtype of a variable and of its value.

    Without it only a dtype policy would make weights bfloat16, and would draw and keep statistics in bfloat16 too.
    """
    variable._dtype = dtype
    if isinstance(variable._value, jax.ShapeDtypeStruct):
        release(variable)
    elif isinstance(variable._value, jax.Array) and not isinstance(variable._value, jax.core.Tracer):
        variable._value = variable._value.astype(dtype)


@contextmanager
def in_float32(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Without it Keras rounds a value that is passed for a narrower variable to the variable's own dtype."""
    before = [variable._dtype for variable in variables]
    for variable in variables:
        variable._dtype = str(jnp.promote_types(variable._dtype, jnp.float32))
    try:
        yield
    finally:
        for variable, dtype in zip(variables, before, strict=True):
            variable._dtype = dtype


def trainable_ids(model: keras.Model) -> set[int]:
    """Returns the ids of the variables that layers made to be trained: a frozen weight is one, a statistic is not."""
    ids = set[int]()
    for layer in (model, *all_layers(model)):
        ids.update(map(id, layer._trainable_variables))
    return ids


def remove_unused(jaxpr: Jaxpr) -> tuple[Jaxpr, Sequence[bool]]:
    """Returns a trace without unused equations, and which inputs are used.

    Without it the states of random generators could not be computed without the weights, and no check could find the
    weights that a loss does not depend on.
    """
    needed: tuple[Jaxpr, Sequence[bool]] = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return needed


@contextmanager
def calls_replaced(
    layers: Sequence[keras.Layer], make: Callable[[keras.Layer, Callable[..., object]], Callable[..., object]]
) -> Iterator[None]:
    """Replaces the `call` of layers by what `make` returns for a layer and its own call, while the context lasts.

    Without it the outputs of a subclassed model's layers could not be recorded.
    """
    try:
        for layer in layers:
            # Not by Keras's own __setattr__, which would track the function.
            object.__setattr__(layer, "call", make(layer, layer.call))
        yield
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


def take_replaced(make: Callable[[ArrayFunction], ArrayFunction]) -> AbstractContextManager[None]:
    """Replaces Keras's look-up of a table's rows, whose gradients else add up in bfloat16, see `.layers.gradients`."""
    return _replaced(backend.numpy, "take", make)


def attention_replaced(make: Callable[[ArrayFunction], ArrayFunction]) -> AbstractContextManager[None]:
    """Replaces the attention of Keras's layers, which a mesh may fail in, see `.layers.fused_attention`."""
    return _replaced(backend.nn, "dot_product_attention", make)


@contextmanager
def gpu_attention(can_fuse: Callable[..., bool]) -> Iterator[None]:
    """Makes Keras and JAX choose attention as on a GPU that is not here, while the context lasts.

    Without it a plan for GPUs has the attention of this machine's CPU: both ask `jax.devices()`. `can_fuse` takes
    query, key, value, bias and `raise_error`.
    """
    with ExitStack() as stack:
        stack.enter_context(_replaced(backend.nn, "_can_use_flash_attention", lambda _: can_fuse))
        # (the GPU's compute capability) -> whether it is at least, or just, that one
        at_least = _replaced(fused_attention_stablehlo, "check_compute_capability", lambda _: lambda *_: True)
        exactly = _replaced(fused_attention_stablehlo, "is_cuda_compute_capability_equal", lambda _: lambda *_: False)
        stack.enter_context(at_least)
        stack.enter_context(exactly)
        yield


class BatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Has a method for the moments of a batch. Without it they are Keras's own: the same, slower on a mesh."""

    def moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns mean and variance, (channels,), of a float array."""
        raise NotImplementedError

    def _moments(self, inputs: jax.Array, mask: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        if mask is None:
            return self.moments(inputs)
        masked: tuple[jax.Array, jax.Array] = super()._moments(inputs, mask)
        return masked


@contextmanager
def kernel_gradients_of(
    prepare: Callable[[jax.Array, jax.Array, lax.ConvDimensionNumbers], tuple[jax.Array, jax.Array]],
) -> Iterator[None]:
    """Applies a function of images, gradient of the results and dims to the inputs of convolution kernels' gradients.

    Every convolution is the same primitive, whichever function made it, and its gradients are computed by the one rule
    that this table has for it. Without it kernel gradients are wrong on some meshes, see `.layers.gradients`.
    """
    original = ad.fancy_transposes[lax.conv_general_dilated_p]

    def rule(gradient: jax.Array, images: jax.Array, kernel: object, **parameters: Any) -> None:
        # The rule computes the gradient of one operand per call, and that operand is a GradAccum. The gradient of
        # images needs no preparation, and a symbolic zero has no array to prepare.
        if isinstance(kernel, ad.GradAccum) and type(gradient) is not ad.Zero:
            images, gradient = prepare(images, gradient, parameters["dimension_numbers"])
        original(gradient, images, kernel, **parameters)

    ad.fancy_transposes[lax.conv_general_dilated_p] = rule
    try:
        yield
    finally:
        ad.fancy_transposes[lax.conv_general_dilated_p] = original


def tensorflow_unimported() -> AbstractContextManager[None]:
    """Keeps Keras from importing TensorFlow while the context lasts, if nothing has imported it yet.

    To serialize a model, Keras checks of every object whether it is one of TensorFlow's, and imports TensorFlow for
    that. Without this, saving a model costs 3.5 s of CPU time and 450 MB more.
    """
    if "tensorflow" in sys.modules:
        return nullcontext()
    return _replaced(module_utils.tensorflow, "_available", lambda _: False)
