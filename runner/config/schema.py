"""The typed run config: one dataclass a Hydra group. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.config.schema_trainer import CheckpointConfig, EarlyStoppingConfig, ProfileConfig, TrainerConfig

__all__ = [
    "AugmentConfig",
    "CheckpointConfig",
    "DatasetConfig",
    "EarlyStoppingConfig",
    "ProfileConfig",
    "TaskConfig",
    "TrainerConfig",
]

# OmegaConf resolves these annotations at run time, so they must stay importable, plain types.


@dataclass
class EngineConfig:
    """What computes the steps.

    Attributes:
      name: `keras_dtensor`, `core_dtensor` or `jax`.
      precision: of layers, `float32` or `bfloat16`; the loss is float32 in both, and weights and slots are as `state`
        says.
      state: jax: with `precision=bfloat16`, what weights and slots are: `float32`; `master` (float32, of which the
        model uses bfloat16 copies, rounded by shards before they are gathered); `bfloat16` (both, at half the memory).
      combine_all_reduces: lets DTensor merge a step's all-reduces into one. It moves them across variable accesses, so
        a step must not read what it has written; the engine's does not, and a model that does is refused. null: yes,
        but for models of more than 64 batch normalizations, for which DTensor would look for pairs for minutes.
      intra_op_threads: threads that one operation may use; null divides the cores among the virtual devices.
      canary: runs two checked steps on the mesh before training.
      loop: jax: how the steps of a device call are run: `device` (a loop in one program), `host` (a program a step) or
        `auto`: `device`, but for convolutions on a CPU that XLA's loops make several times slower, as grouped ones.
      data: jax: where the training examples are: `device` (all of them on every device, gathered there), `host`
        (streamed) or `auto`: `device` up to 1 GiB.
      compilation_cache: jax: keeps compiled programs in outputs/jax_cache for the next run.
    """

    name: str = "keras_dtensor"
    precision: str = "float32"
    state: str = "float32"
    combine_all_reduces: bool | None = None
    intra_op_threads: int | None = None
    canary: bool = True
    loop: str = "auto"
    data: str = "auto"
    compilation_cache: bool = True


@dataclass
class MeshConfig:
    """Mesh axes in order, name to size; a mesh of one device is `{batch: 1}`.

    Attributes:
      axes: axis name to axis size; one size may be -1 (the rest of the devices there).
      device: `auto` (TPUs or GPUs that are here where the mesh fits them and the installed libraries can use them,
        else virtual devices of the CPU), `cpu`, `gpu` or `tpu`; the config of a run records which it was.
      cpu_devices: how many virtual devices the CPU may be split into; only as many as the mesh needs are made.
    """

    axes: dict[str, int] = field(default_factory=dict)
    device: str = "auto"
    cpu_devices: int = 8


@dataclass
class ClusterConfig:
    """The processes that share a mesh; its sizes are of all of them together.

    Attributes:
      name: `single`, `local` (started by the command, on this machine), `auto` (found in the variables of Slurm, Open
        MPI, torchrun or Kubernetes) or `explicit` (told by the keys below).
      processes: how many.
      index: which one this is, from 0.
      coordinator: `host:port` of process 0.
      interface: network interface or address that this process is reached at; null: the one that leads to process 0.
      timeout: longest wait in a collective, in seconds.
      start_timeout: seconds within which all processes must have come.
      requeue: a Slurm job that is about to end asks to be queued again, and goes on as the same run.
      open_ports: accepts that the DTensor engines listen on all network interfaces, without authentication: whoever
        reaches their ports runs code as you.
      secret_file: file of mode 0600 with the secret that all processes must know, the same for all; null: the variable
        `RUNNER_CLUSTER_SECRET`, else a file in your home that the first run makes.
    """

    name: str = "single"
    processes: int | None = None
    index: int | None = None
    coordinator: str | None = None
    interface: str | None = None
    timeout: float = 600.0
    start_timeout: float = 120.0
    requeue: bool = False
    open_ports: bool = False
    secret_file: str | None = None


@dataclass
class RuleConfig:
    """One layout rule, with one of `spec`, `shard` and `transformer`.

    Attributes:
      match: regular expression on the whole of `layer/variable`.
      spec: one entry a dim, each an axis name or null.
      shard: an axis; splits the largest dim that it divides, the last of equals; a variable without one stays whole.
      min_elements: with `shard`, variables of fewer elements stay whole.
      transformer: an axis; splits what is known of a transformer by paths and shapes: attention by heads, feed-forward
        by hidden units, embeddings and heads by vocabulary. What else it matches is passed on. An axis of the mesh
        called `experts` splits a mixture's experts; a rule that names it here splits nothing else.
      store: with `transformer`, an axis that splits the same kernels on another dim in store.
      optional: a preset's rule for models of many kinds: it may catch nothing, and a variable that its spec does not
        fit (rank, divisibility) is passed on to the rules after it.
    """

    match: str = ""
    spec: list[str | None] | None = None
    shard: str | None = None
    min_elements: int = 0
    transformer: str | None = None
    store: str | None = None
    optional: bool = False


@dataclass
class LayoutConfig:
    """Where variables and inputs lie on the mesh.

    Attributes:
      rules: first `re.fullmatch` wins; a variable that no rule matches is replicated.
      inputs: name of a batch's array -> one entry a dim, the examples' first, each an axis or null; an array that is
        not named is split over its first dim, by the first entry of those that are, else by the axis `batch`.
      auto: proposes a rule for every variable that no rule catches.
      sequence: an axis that splits the tokens of every array of a batch whose dim is named `sequence`, but of those
        that `inputs` names; goes with every layout. null: none does.
      from_model: engine jax: what no rule catches lies as the model's own `get_layout_map` says (KerasHub).
    """

    auto: bool = False
    sequence: str | None = None
    from_model: bool = False
    rules: list[RuleConfig] = field(default_factory=list)
    inputs: dict[str, list[str | None]] = field(default_factory=dict)


@dataclass
class ModelConfig:
    """A builder and what it is called with.

    Attributes:
      target: `_target_` in YAML; import path of a callable
        `(keras, inputs, outputs, **options) -> keras.Model`.
      options: keyword arguments of the builder; in YAML they stand beside `_target_`.
      trainable: jax: regular expressions on the whole of canonical paths; the variables that one of them catches are
        trained, the others not. null: those that the builder left trainable.
    """

    target: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    trainable: list[str] | None = None


@dataclass
class ScheduleConfig:
    """Learning rate by step.

    Attributes:
      name: `constant`, `cosine`, `exponential` or `piecewise`.
      warmup_steps: cosine: steps of linear rise from 0.
      decay_steps: cosine: steps after the warm-up until `final_factor`; exponential: steps a factor of `decay_rate`.
      decay_rate: exponential: factor every `decay_steps` steps.
      staircase: exponential: decay in steps, not continuously.
      final_factor: cosine: last learning rate as a share of the first.
      boundaries: piecewise: steps at which the rate changes.
      factors: piecewise: multiples of `learning_rate`, one more than `boundaries`.
    """

    name: str = "constant"
    warmup_steps: int = 0
    decay_steps: int | None = None
    decay_rate: float = 0.96
    staircase: bool = False
    final_factor: float = 0.0
    boundaries: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)


@dataclass
class ClipConfig:
    """Gradient clipping; at most one of the three is set.

    Attributes:
      norm: clips each gradient to this L2 norm.
      global_norm: clips all gradients together to this L2 norm.
      value: clips each entry to [-value, value].
    """

    norm: float | None = None
    global_norm: float | None = None
    value: float | None = None


@dataclass
class EmaConfig:
    """Exponential moving average of the trained weights, which evaluations, exports and logged models then use.

    Attributes:
      decay: what the average keeps of itself at each update, which the first one sets to the weights; null: none.
    """

    decay: float | None = None


@dataclass
class OptimizerConfig:
    """Update rule and its numbers; what a rule does not use stays at null.

    Attributes:
      name: `adam`, `adamw`, `sgd` or `rmsprop`.
      learning_rate: base learning rate, which the schedule multiplies. Adam's default is 0.001, as in Keras, and 0.01
        for the MLPs of TensorFlow's tutorials.
      frozen_step: reproduces a bug: Adam's bias correction stays at step 1, as where a Python number is traced.
      reread_slots: reproduces a bug: Adam's moments are assigned and read back in one step, as stock optimizers do;
        with `engine.combine_all_reduces` DTensor then gives those of the step before, on more than one device.
    """

    name: str = "adam"
    learning_rate: float = 0.001
    frozen_step: bool = False
    reread_slots: bool = False
    beta_1: float | None = None
    beta_2: float | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    rho: float | None = None
    centered: bool | None = None
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)


@dataclass
class VerifyConfig:
    """Settings of `runner.verify`.

    Attributes:
      steps: training steps that both sides take, the run's first.
      seconds: time limit of one device's training: no step begins later, except the first three; null: no limit.
      allow_inconclusive: a verdict of `inconclusive` passes.
    """

    steps: int = 20
    seconds: float | None = 20.0
    allow_inconclusive: bool = False


@dataclass
class AgainstConfig:
    """What `runner.verify` compares the engine with.

    Attributes:
      engine: another engine, on the same mesh and layout; null: one device.
      processes: 1: compare a run in several processes with one process that has the whole mesh.
    """

    engine: str | None = None
    processes: int | None = None


@dataclass
class TrackingConfig:
    """Where the run is recorded.

    Attributes:
      name: `mlflow` or `none`.
      uri: tracking URI; null: $MLFLOW_TRACKING_URI, else a SQLite file in `outputs/`.
      experiment: MLflow experiment.
      run_name: null: made of model, mesh and layout.
      tags: more tags of the run.
    """

    name: str = "mlflow"
    uri: str | None = None
    experiment: str = "runner"
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class SweepConfig:
    """What a multirun does besides running its jobs; a single run does not look here.

    Attributes:
      name: of the sweep's own run; null: made of what varies.
      metric: by which jobs are compared, as `eval/loss`; `auto`: the task's first one of which more is better, else
        the loss.
      direction: `maximize` or `minimize`; null: as the metric itself says, `maximize` where it does not.
      resume: a sweep's run id, or `latest`: runs what is not finished of it, under the same parent.
      skip_finished: skips a job that a finished run covers: equal config, equal code, data files as they were.
    """

    name: str | None = None
    metric: str = "auto"
    direction: str | None = None
    resume: str | None = None
    skip_finished: bool = False


@dataclass
class PlanConfig:
    """What the plan reckons times with.

    Attributes:
      bandwidth_gb_s: GB/s that one device sends to its neighbor; null: by device type.
      network_gb_s: GB/s that one device sends to a device of another process; null: by device type.
      gflops: 1e9 floating-point operations a second of one device; null: by device type.
    """

    bandwidth_gb_s: float | None = None
    network_gb_s: float | None = None
    gflops: float | None = None


@dataclass
class EvaluateConfig:
    """What `runner.evaluate` evaluates.

    Attributes:
      split: `test`, `validation`, `train`, or a split expression, as `test[:1000]`.
      prompt: what a language model's samples begin with; null: as `task.sample.prompt` says.
    """

    split: str = "test"
    prompt: str | None = None


@dataclass
class ExportConfig:
    """Where `runner.export` writes.

    Attributes:
      folder: null: outputs/exports/<run>. What an earlier export wrote there is replaced, anything else is refused.
    """

    folder: str | None = None


@dataclass
class RunConfig:
    """The whole config of a run, resolved and checked.

    Beside the groups stand three words of the command line:

    Attributes:
      resume: the checkpoints of the run that goes on, with `@<step>` behind it where one was asked for.
      branch: likewise, of the run that a new one begins with.
      run: likewise, of the run that a command looks at.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    against: AgainstConfig = field(default_factory=AgainstConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    resume: str | None = None
    branch: str | None = None
    run: str | None = None
