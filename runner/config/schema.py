"""The typed config of a run: one frozen dataclass per Hydra group, with the values that each key may hold.

A key is added here, as one field with one line of documentation, and in the YAML of its group. Groups with many keys
have a module of their own, and all classes may be imported from here. Imports no TensorFlow, JAX or MLflow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from runner.config.fields import (
    IDENTIFIER,
    NOT_EMPTY,
    checked,
    choice,
    file_path,
    integer,
    number,
    pattern,
    pattern_problem,
    text,
    valid_if,
)
from runner.config.schema_data import AugmentConfig as AugmentConfig
from runner.config.schema_data import DatasetConfig as DatasetConfig
from runner.config.schema_hardware import HardwareConfig as HardwareConfig
from runner.config.schema_schedule import PlateauConfig as PlateauConfig
from runner.config.schema_schedule import ScheduleConfig as ScheduleConfig
from runner.config.schema_task import TaskConfig as TaskConfig
from runner.config.schema_trainer import CheckpointConfig as CheckpointConfig
from runner.config.schema_trainer import EarlyStoppingConfig as EarlyStoppingConfig
from runner.config.schema_trainer import ProfileConfig as ProfileConfig
from runner.config.schema_trainer import TrainerConfig as TrainerConfig

# As the value of `resume`: begin the run of that name, or continue it.
AUTO = "auto"

# As the size of a mesh axis: all devices that the other axes leave.
REST = -1

# A choice: every virtual device costs memory and threads of this machine.
MOST_CPU_DEVICES = 256

# Letters of ASCII only, which every engine takes.
_AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _is_address(value: str) -> bool:
    """Returns whether a string is `host:port`."""
    host, _, port = value.rpartition(":")
    is_port = re.fullmatch("[0-9]+", port) is not None and 0 < int(port) < 65_536
    return bool(host) and is_port


def _name_problem(value: str) -> str | None:
    # The folder of its checkpoints has this name, and `run=<name>` has to mean this run alone.
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", value):
        return "must be letters, digits, '_', '-' and '.', at most 100"
    if value in (AUTO, "latest", "best"):
        return "must not be a word that selects other runs"
    return None


@dataclass(frozen=True)
class EngineConfig:
    """The engine (backend) that computes the training steps.

    Attributes:
      name: `keras_dtensor`, `core_dtensor` or `jax`.
      precision: compute precision of layers; the loss is always float32, and weights and optimizer state follow
        `state`.
      state: jax: precision of weights and optimizer state with `precision=bfloat16`: `float32`; `master` (float32,
        cast to bfloat16 copies for the model, shard by shard before the all-gather); `bfloat16` (half the memory).
      combine_all_reduces: DTensor: merge the all-reduces of a step into one. That moves them across variable accesses,
        so a model whose step reads what it has written is rejected.
      loop: jax: how the steps of one device call are run: `device` (a loop inside one program), `host` (one program
        per step) or `auto`: `device`, except for convolutions that XLA's CPU loops make several times slower.
      data: jax: location of the training examples: `device` (all of them on every device), `host` (streamed) or
        `auto`: `device` up to 1 GiB.
      compilation_cache: jax: keep compiled programs in ~/.cache/runner/jax for the next run.
    """

    # The registry of engines has the names; see `runner.engine.checks`.
    name: str = "keras_dtensor"
    precision: str = choice("float32", "float32", "bfloat16")
    state: str = choice("float32", "float32", "master", "bfloat16")
    combine_all_reduces: bool = True
    loop: str = choice("auto", "auto", "device", "host")
    data: str = choice("auto", "auto", "device", "host")
    compilation_cache: bool = True


@dataclass(frozen=True)
class MeshConfig:
    """The device mesh: axes in order, name to size.

    The mesh of a single device is `{batch: 1}`.

    Attributes:
      axes: axis name to axis size; one size may be -1 (all remaining devices).
      device: device type: `cpu`, `gpu`, `tpu` or `auto` (available TPUs or GPUs if the mesh fits them and the
        installed libraries support them, else virtual CPU devices). The recorded config has the type that was used.
      cpu_devices: maximum number of virtual CPU devices; only as many as the mesh needs are created.
    """

    axes: dict[str, int] = checked(
        {},
        test=valid_if(
            lambda size: size >= 1 or size == REST, f"must be at least 1, or {REST} for all remaining devices"
        ),
        rule="at least 1, or -1",
        example={"batch": 8},
        key_pattern=_AXIS_NAME,
    )
    device: str = choice("auto", "auto", "cpu", "gpu", "tpu")
    cpu_devices: int = integer(8, at_least=1, at_most=MOST_CPU_DEVICES)


@dataclass(frozen=True)
class ClusterConfig:
    """The processes that share a mesh.

    The sizes of its axes count the devices of all processes.

    Attributes:
      name: `single`, `local` (processes that the command starts on this machine), `auto` (read from the variables of
        Slurm, Open MPI, torchrun or Kubernetes) or `explicit` (given by the keys below).
      processes: number of processes (world size).
      index: index of this process (rank), from 0.
      coordinator: `host:port` of process 0.
      timeout: longest wait in a collective, in seconds.
      start_timeout: time within which all processes must have connected, in seconds.
      restarts: how often a run that was lost is started again, by the launcher of `cluster=local` or by
        `runner.supervise`; not after an invalid config or a NaN or Inf loss.
    """

    name: str = choice("single", "single", "local", "auto", "explicit")
    # A choice: far more than any run needs, so that only typing mistakes are rejected.
    processes: int | None = integer(None, at_least=1, at_most=4096, example=2)
    index: int | None = integer(None, at_least=0)
    coordinator: str | None = checked(
        None, test=valid_if(_is_address, "must be host:port"), rule="host:port", example="10.0.0.1:29400"
    )
    # A choice: 1e6 seconds are eleven days, longer than anyone means to wait.
    timeout: float = number(600.0, at_least=1.0, at_most=1e6, unit="seconds")
    start_timeout: float = number(120.0, at_least=1.0, at_most=1e6, unit="seconds")
    # A choice: more would only hide that something is wrong.
    restarts: int = integer(0, at_least=0, at_most=1000, example=10)


@dataclass(frozen=True)
class RuleConfig:
    """One layout rule, with exactly one of `spec`, `shard` and `transformer`.

    Attributes:
      match: regular expression, matched against the whole of `layer/variable`.
      spec: one entry per dim, each an axis name or null.
      shard: an axis; shards the largest dim that it divides, the last of equal ones; a variable without such a dim is
        replicated.
      min_elements: with `shard`: variables with fewer elements are replicated.
      transformer: an axis for tensor parallelism of transformers, which are recognized by paths and shapes: attention
        is sharded by heads, feed-forward layers by hidden units, embeddings and heads by vocabulary. Other variables
        are passed on to the next rule. A mesh axis called `experts` shards the experts of a mixture; a rule that names
        it here shards nothing else.
      store: with `transformer`: an axis that shards the same kernels on another dim, as FSDP does.
      optional: for presets that fit many models: the rule may match nothing, and a variable that its spec does not fit
        (rank, divisibility) is passed on to the next rule.
    """

    match: str = pattern("", example="d1/kernel")
    spec: list[str | None] | None = None
    shard: str | None = None
    min_elements: int = integer(0, at_least=0)
    transformer: str | None = None
    store: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class LayoutConfig:
    """Sharding of variables and inputs over the mesh.

    Attributes:
      rules: the first rule whose pattern matches wins; a variable that no rule matches is replicated.
      inputs: array name to one entry per dim, the batch dim first, each an axis or null. Arrays that are not listed
        are sharded over their first dim, by the first entry of those that are, else by the axis `batch`.
      auto: propose a rule for every variable that no rule matches.
      sequence: an axis for context parallelism: shards the dim named `sequence` of every array that `inputs` does not
        list; works with every layout. null: none.
      from_model: jax: for variables that no rule matches, use the model's own `get_layout_map` (KerasHub).
    """

    auto: bool = False
    sequence: str | None = None
    from_model: bool = False
    rules: list[RuleConfig] = field(default_factory=list)
    inputs: dict[str, list[str | None]] = checked({}, rule="", example={"image": ["batch"]}, key_pattern=IDENTIFIER)


@dataclass(frozen=True)
class ModelConfig:
    """A model builder and its keyword arguments.

    Attributes:
      target: `_target_` in YAML; import path of a callable `(keras, inputs, outputs, **options) -> keras.Model`.
      options: keyword arguments of the builder; in YAML they are written next to `_target_`.
      trainable: jax, fine-tuning: regular expressions matched against whole variable paths; variables that match one
        are trained, all others are frozen. null: those that the builder left trainable.
    """

    target: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    trainable: list[str] | None = checked(
        None,
        test=pattern_problem,
        whole=valid_if(len, "must have at least one pattern, or be null to train all variables"),
        rule="regular expressions",
        example=[".*/kernel"],
    )


@dataclass(frozen=True)
class ClipConfig:
    """Gradient clipping; at most one of the three is set.

    Attributes:
      norm: clip each gradient to this L2 norm.
      global_norm: clip all gradients together to this L2 norm.
      value: clip each entry to [-value, value].
    """

    # Keras's optimizers accept one of the three only, too.
    norm: float | None = number(None, above=0.0, example=1.0)
    global_norm: float | None = number(None, above=0.0, example=1.0)
    value: float | None = number(None, above=0.0, example=1.0)


@dataclass(frozen=True)
class EmaConfig:
    """Exponential moving average (EMA) of the trained weights.

    Evaluation, export and logged models use it.

    Attributes:
      decay: EMA decay per update; the first update sets the average to the weights. null: no EMA.
    """

    # With a decay of 1 the average would stay at the first weights.
    decay: float | None = number(None, at_least=0.0, below=1.0, example=0.999)


@dataclass(frozen=True)
class GroupConfig:
    """Settings of the trainable variables that a pattern matches.

    Of each setting, the first group that matches a variable and has it counts.

    Attributes:
      match: regular expression that must match a variable's whole path, or `biases_and_norms`.
      rate: factor of the learning rate. null: not set by this group.
      decay: false: no weight decay. null: not set by this group.
    """

    match: str = pattern("", example="embedding/.*")
    rate: float | None = number(None, above=0.0, example=0.1)
    decay: bool | None = None


@dataclass(frozen=True)
class OptimizerConfig:
    """Update rule and its hyperparameters; those that a rule does not use are null.

    Attributes:
      name: `adam`, `adamw`, `sgd`, `rmsprop` or `keras`.
      learning_rate: base learning rate, multiplied by the schedule. For Adam the default is 0.001, as in Keras, and
        0.01 for the MLPs of TensorFlow's tutorials.
      frozen_step: adam: reproduce a bug: bias correction stays at step 1, as if the step count were a traced constant.
      reread_slots: adam: reproduce a bug: moments are assigned and read back in one step, as stock optimizers do; with
        `engine.combine_all_reduces` DTensor then uses the moments of the previous step on more than one device.
      beta_1: adam, adamw: decay of the first moment.
      beta_2: adam, adamw: decay of the second moment.
      epsilon: adam, adamw, rmsprop: added to the denominator for numerical stability.
      weight_decay: adamw: decoupled weight decay, multiplied by the learning rate.
      momentum: sgd, rmsprop: momentum; 0: none.
      nesterov: sgd: Nesterov momentum.
      rho: rmsprop: decay of the mean square.
      centered: rmsprop: normalize by the variance, not by the mean square.
      class_name: keras: name of a class in `keras.optimizers`.
      options: keras: options of the class; optax: arguments of the function. In YAML they are written next to
        `class_name` or `_target_`.
      groups: settings of variables by patterns of their paths.
      gradient_norm: `global`: log the L2 norm of all gradients before clipping. null: not logged.
      target: optax: `_target_` in YAML; import path of a function `(**options) -> optax.GradientTransformation`.
    """

    # The registry of optimizers has the names, and the keys that each rule uses.
    name: str = "adam"
    learning_rate: float = number(0.001, above=0.0)
    frozen_step: bool = False
    reread_slots: bool = False
    # From here on a key is null unless the option of an update rule sets it: a value that the rule does not use is
    # rejected. With a beta of 1 the bias correction would divide by 0.
    beta_1: float | None = number(None, at_least=0.0, below=1.0, example=0.9)
    beta_2: float | None = number(None, at_least=0.0, below=1.0, example=0.999)
    # With 0, the update of a weight whose gradient has always been 0 would be 0 / 0.
    epsilon: float | None = number(None, above=0.0, example=1e-7)
    weight_decay: float | None = number(None, at_least=0.0, example=0.004)
    # With a momentum of 1 or more the velocity would grow without bound.
    momentum: float | None = number(None, at_least=0.0, below=1.0, example=0.9)
    nesterov: bool | None = None
    # With a rho of 1 the mean square would stay 0.
    rho: float | None = number(None, at_least=0.0, below=1.0, example=0.9)
    centered: bool | None = None
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    class_name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    groups: list[GroupConfig] = field(default_factory=list)
    target: str = ""
    gradient_norm: str | None = choice(None, "global", example="global")


@dataclass(frozen=True)
class VerifyConfig:
    """Extent of the comparison by `runner.verify`.

    Attributes:
      steps: training steps that both sides compute, from the first step of the run.
      allow_inconclusive: accept the outcome `inconclusive`.
    """

    steps: int = integer(20, at_least=1)
    allow_inconclusive: bool = False


@dataclass(frozen=True)
class TrackingConfig:
    """Where the run is recorded.

    Attributes:
      writers: where, any of `mlflow`, `tensorboard` and `wandb`; with none of them, nothing is recorded.
      uri: tracking URI; null: $MLFLOW_TRACKING_URI, else a SQLite file in `outputs/`.
      experiment: MLflow experiment, and W&B project; null: $MLFLOW_EXPERIMENT_NAME, else `runner`.
      run_name: name of the run; null: $MLFLOW_RUN_NAME, else made of model, mesh and layout.
      tags: additional tags of the run, beside those of $MLFLOW_RUN_CONTEXT, a JSON object.
    """

    writers: list[str] = checked(
        ["mlflow"],
        choices=("mlflow", "tensorboard", "wandb"),
        whole=valid_if(lambda names: len(set(names)) == len(names), "must name each writer once"),
        example=["mlflow", "tensorboard"],
    )
    # `runner.tracking.location` checks it.
    uri: str | None = text(None, example="sqlite:///mlflow.db")
    experiment: str | None = text(None, example="my_experiment")
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepConfig:
    """Name, metric and jobs of a multirun; not used by a single run.

    Attributes:
      name: name of the sweep's parent run; null: made of the varied keys.
      metric: metric that jobs are compared by, such as `eval/loss`; `auto`: the task's first metric that is maximized,
        else the loss.
      direction: `maximize` or `minimize`; null: the direction of the metric, `maximize` if it has none.
      resume: run ID of a sweep, or `latest`: skip its finished jobs, and continue the others under that parent run.
      stop_on_failure: start no other job after one that did not pass; those that run end by themselves.
    """

    name: str | None = None
    # The metrics depend on the task, so `runner.plan.checks.trainer` checks the name.
    metric: str = "auto"
    direction: str | None = choice(None, "maximize", "minimize")
    resume: str | None = None
    stop_on_failure: bool = False


@dataclass(frozen=True)
class PlanConfig:
    """Depth of a plan, and rates that it estimates times with.

    Attributes:
      compiler: what the figures of other `hardware` come from: `arithmetic` (shapes alone, within seconds), `target`
        (the step compiled by its own compiler, for which it need not be here), or `auto`: `target` if that compiler is
        installed. A step for this machine's devices is compiled for virtual CPU devices.
      bandwidth_gb_s: bandwidth between neighboring devices in GB/s per device; null: default for the device type.
      network_gb_s: bandwidth between processes in GB/s per device; null: default for the device type.
      gflops: throughput of one device in GFLOP/s; null: default for the device type.
    """

    compiler: str = choice("auto", "auto", "arithmetic", "target")
    bandwidth_gb_s: float | None = number(None, above=0.0, unit="GB/s", example=25.0)
    network_gb_s: float | None = number(None, above=0.0, unit="GB/s", example=10.0)
    gflops: float | None = number(None, above=0.0, unit="GFLOP/s", example=60_000.0)


@dataclass(frozen=True)
class AdviseConfig:
    """What `runner.advise` looks for.

    Attributes:
      devices: number of devices to find a mesh for. On a command line, `devices=` is short for `advise.devices=`.
    """

    # A choice: as many as the largest published runs.
    devices: int | None = integer(None, at_least=1, at_most=65_536, example=64)


@dataclass(frozen=True)
class EvaluateConfig:
    """The split that `runner.evaluate` uses.

    Attributes:
      split: `test`, `validation`, `train`, or a split expression such as `test[:1000]`.
    """

    split: str = "test"


@dataclass(frozen=True)
class GenerateConfig:
    """The prompt that `runner.generate` continues, and how it draws tokens.

    Attributes:
      prompt: start of the text. On a command line, `prompt=` is short for `generate.prompt=`.
      tokens: number of tokens of the text; null: 256, or as many as fit into a row.
      temperature: divisor of the logits before a token is drawn; 0: always the most probable token.
      seed: of the draws; null: `trainer.seed`.
    """

    prompt: str | None = checked(None, test=NOT_EMPTY, rule="not empty", example="Once upon a time")
    tokens: int | None = integer(None, at_least=1, example=256)
    temperature: float = number(1.0, at_least=0.0)
    seed: int | None = integer(None, at_least=0, example=0)


@dataclass(frozen=True)
class ReplayConfig:
    """The step of a recorded run that `runner.verify run=<run id>` computes again, and what it records of it.

    Attributes:
      step: training step of the run, counted from 1. On a command line, `step=` is short for `replay.step=`.
      against: another run: finds the first step at which the two part. `against=` is short for `replay.against=`.
      script: file of a user's own Keras training on a mesh, verified as it is. `script=` is short for it.
      start: step of the checkpoint to start from; 0: the beginning of the run; null: the nearest one before the step.
      states: record a digest of every variable at the start and after each step.
    """

    step: int | None = integer(None, at_least=1, example=100)
    against: str | None = None
    script: str | None = text(None, example="train.py")
    start: int | None = integer(None, at_least=0, example=0)
    states: bool = False


@dataclass(frozen=True)
class ExportConfig:
    """Where `runner.export` writes.

    Attributes:
      folder: output folder; null: outputs/exports/<run>. An earlier export in it is replaced; a folder with other
        content is rejected.
    """

    folder: str | None = file_path(None, example="outputs/served")


@dataclass(frozen=True)
class RunConfig:
    """The whole config of a run, resolved and checked.

    Four keys of the command line are in no group:

    Attributes:
      resume: checkpoints of the run to resume, with `@<step>` appended if one was requested; or `auto`.
      name: of a run that `resume=auto` begins or continues.
      branch: checkpoints of the run whose state a new run starts from.
      run: checkpoints of the run that a command reads.
    """

    # Values are checked in this order, and the first invalid one is reported.
    engine: EngineConfig = field(default_factory=EngineConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    advise: AdviseConfig = field(default_factory=AdviseConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    resume: str | None = None
    name: str | None = checked(None, test=_name_problem, rule="name of a folder", example="exp1")
    branch: str | None = None
    run: str | None = None
