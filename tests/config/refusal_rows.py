"""Command lines that are invalid, one for each place that rejects: arguments two spaces apart, and parts of the line.

`tests.config.test_refusals` runs them. What fields of the schema say of their values is in `test_new_key` and
`test_build`, and the fuzz campaign draws values of every key.
"""

from runner.engine.listeners import STEERING

_EXPLICIT = "mesh=batch2  engine=jax  cluster=explicit  cluster.processes=2"

ROWS: list[tuple[str, ...]] = [
    # Engines.
    ("engine=jx", "engine=jx", "did you mean engine=jax?"),
    ("engine=jax  engine.loop=devise", "engine.loop=devise", "auto, device, host", "did you mean device?"),
    ("engine.data=device", "engine.data=device", "unknown key", "set engine=jax, which has it"),
    ("engine.precision=bfloat16", "engine=keras_dtensor supports float32 only", "set engine=jax, or"),
    # Groups, options and keys.
    ("plan.gflops=0", "plan.gflops=0.0", "must be above 0"),
    ("mesh=batch9", "mesh=batch9", "options of mesh: batch1_model1, batch2", "mesh.axes.batch=9 mesh.cpu_devices=9?"),
    (f"dataset={'x' * 300}", "dataset=xxx", "has a name of more than 250 bytes; check its spelling"),
    (f"mesh={'x' * 200}", "mesh=xxx", "unknown option", "options of mesh: batch1_model1, batch2"),
    ("experiment=nope", "experiment=nope", "see python -m runner --help experiment"),
    ("nosuch=1", "nosuch=1", "groups: advise, branch, cluster, dataset"),
    ("optimizer.momentum=1", "set optimizer=rmsprop or sgd, which have it"),
    ("engine=jax  model=keras_hub  model.remat=full", "model.remat=full: unknown key", "only model=gpt has it"),
    ("engine=jax  model=gpt  model.lora_rank=8", "model.lora_rank=8: unknown key", "only model=keras_hub has it"),
    ("hardware=h100  hardware.price=2", "hardware.price=2: unknown key", "; see python -m runner --help hardware"),
    ("hardware=a10g", "describe it by its own numbers in place of the l4's: hardware=l4 hardware.name=a10g"),
    ("+trainer.epoch=2", "trainer.epoch", "unknown key", "did you mean epochs?"),
    ("trainer.early_stopping.monitor=val_loss", "patience); did you mean trainer.early_stopping.metric=eval/loss?"),
    ("dataset=arrays  dataset.augment.flip=up", "dataset.augment.flip=up", "invalid literal"),
    ("+nosuch=1", "nosuch=1", "groups are engine, mesh"),
    ("layut=8", "layut=8: unknown key", "did you mean layout=8? leave layout out to get the default"),
    ("layout.rules.0.match=x", "layout.rules.0.match=x", "layout.rules is a list"),
    # The grammar of overrides, and types.
    ("mesh=batch8  plan", "plan: a command comes first; write runner plan ..."),
    ("sweep  trainer.epochs=1,2", "sweep: no command; a sweep is runner -m key=1,2"),
    ("trainer.epochs=1,2  mesh=single,batch2", "to run each, type -m trainer.epochs=1,2 mesh=single,batch2"),
    ("trainer.epochs", "'trainer.epochs'", "write key=value"),
    ("trainer.epochs=[1", "'trainer.epochs=[1'", "lists as [a,b]"),
    ("mesh=null", "mesh=null", "must be the name of an option"),
    ("~mesh", "mesh=null", "leave mesh out to use the default"),
    ("+optimizer=sgd", "optimizer=sgd", "Multiple values for optimizer"),
    ("mesh.axes=8", "mesh.axes=8", "must be a mapping from names to integers; set mesh.axes={batch:8}"),
    ("optimizer.schedule=cosine", "error: optimizer.schedule=cosine", "optimizer.schedule.name"),
    ("trainer.epochs=null", "trainer.epochs=null", "a run needs a length", "set trainer.epochs=3, trainer.steps"),
    ("hardware=h100  hardware.efficiency=[0.5]", "set hardware.efficiency=[0.45,0.85]"),
    (f"model.hidden=[0,{','.join(['128'] * 600)}]", "...]: sizes must be at least 1; set model.hidden=[128]"),
    # Sizes.
    ("dataset.batch_size=-4", "dataset.batch_size=-4", "must be at least 1; set dataset.batch_size=128"),
    ("mesh=batch8  dataset.batch_size=100", "dataset.batch_size=100", "multiple of 8", "dataset.batch_size=104"),
    # Meshes and layouts.
    ("mesh.axes.batch=16", "{batch:16}", "needs 16 devices, but only 8 CPU devices are available"),
    ("mesh=batch4_model2  mesh.axes.batch=-1  mesh.axes.model=-1", "mesh.axes.model=-1", "only one axis may be -1"),
    ("mesh=batch4_model2  mesh.axes.batch=3  mesh.axes.model=-1", "mesh.axes.model=-1", "must divide the 8"),
    ("mesh.axes={model:4}", "layout.inputs", "batch"),
    ("+mesh.axes.replica=2  mesh.axes.batch=4", "mesh.axes.replica=2: ", "one axis only; set engine=jax"),
    ("+mesh.axes.my-axis=2", "mesh.axes.my-axis=2", "letters, digits and _"),
    ("mesh=batch2_model4  layout.rules=[{match:d1/kernel,spec:[model,model]}]", "replace one model by null"),
    ("layout.rules=[{match:'d1/(',spec:[null]}]", "layout.rules[0].match=d1/(", "regular expression"),
    ("mesh=batch2_height2  layout=spatial", "shards images by examples only", "set engine=jax"),
    ("mesh=batch8  layout=spatial  engine=jax", "layout.inputs.image=[batch,height,null,null]", "mesh=batch2_height2"),
    ("layout.rules=[{match:d1/kernel}]", "layout.rules[0].spec=null", "exactly one of spec, shard"),
    ("layout.rules=[{match:d1/kernel,spec:[null,batch],shard:batch}]", "but this one has spec and shard"),
    ("layout.rules=[{match:d1/kernel,spec:[null,null],min_elements:9}]", "works with shard only"),
    # Optimizers.
    ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan", "above 0"),
    ("+optimizer.momentum=0.5", "optimizer=adam has no such key (its keys: beta_1", "remove optimizer.momentum"),
    ("optimizer=sgd  optimizer.momentum=0  optimizer.nesterov=true", "optimizer.momentum=0.9"),
    ("optimizer.clip.norm=1  optimizer.clip.value=2", "clip.norm is set", "optimizer.clip.norm=null"),
    ("optimizer.schedule.name=exponential", "optimizer.schedule.decay_steps=null", "decay_steps=1000"),
    ("optimizer.schedule.initial_factor=0.1", "initial_factor=0.1", "set optimizer.schedule.warmup_steps=1000"),
    (
        "optimizer.schedule.name=piecewise  optimizer.schedule.boundaries=[10]  optimizer.schedule.factors=[1.0]",
        "must have 2 entries, one more than optimizer.schedule.boundaries",
    ),
    (
        "optimizer.schedule.name=piecewise  optimizer.schedule.boundaries=[10]  optimizer.schedule.factors=[0,0]",
        "must have an entry above 0",
    ),
    ("optimizer.schedule.decay_steps=5", "optimizer.schedule.decay_steps=5", "optimizer.schedule.name=cosine"),
    # Builders.
    ("model=custom", "model._target_", "is required; set model._target_="),
    ("model._target_=3", "model._target_=3", "an import path"),
    # Secrets.
    ("tracking.uri='http://ann:***@host'", "never stored"),
    ("tracking.uri='http://ann:p@ss@host'  trainer.epochs=[1", "'trainer.epochs=[1'"),
    ("tracking.uri=[http://ann:p4ss@host]", "tracking.uri=", "ann:***@host"),
    # Tasks.
    ("task=segmentation  dataset.image_size=[32,48]", "needs the class numbers of its masks"),
    ("task.metrics=[AUCC]", "task.metrics=AUCC: is not a Keras metric that runs have; did you mean AUC?"),
    ("engine=jax  task.metrics=[{AUC:{weighted:no}}]", "task.metrics.AUC.weighted=no: must be true or false"),
    ("task.metrics=[AUC]", "task.metrics=[AUC]: is Keras 3's, which engine=keras_dtensor", "set engine=jax"),
    ("task=regression  task.loss=mse", "task.loss=mse", "set task.loss=mean_squared_error"),
    ("task=several", "task.outputs={}", "needs at least two outputs", "set task.outputs={age:{name:regression}"),
    ("task=several  task.outputs={a:regression,b:custom}", "task.outputs.b._target_ is required"),
    (
        "engine=core_dtensor  model=mlp_core  task=several  task.outputs={a:regression,b:binary}",
        "trains models of one output, but task=several judges several",
    ),
    (
        "engine=jax  trainer.accumulate_steps=2  task=several  "
        "task.outputs={a:regression,b:{name:positions,ignore_index:0}}",
        "must be 1 with task.outputs.b.ignore_index=0",
    ),
    ("trainer.early_stopping.metric=b_acuracy  task=several  task.outputs={a:regression,b:binary}", "did you mean"),
    (
        "engine=jax  task=custom  task._target_=user_module.loss  task.whole_batch=true  trainer.accumulate_steps=2",
        "must be 1 with task=custom, whose loss compares all rows of a batch",
    ),
    # Datasets.
    ("dataset=mixture  dataset.parts=[]", "dataset.parts=[]", "two datasets or more", "{name: arrays"),
    ("dataset=mixture  dataset.parts=[{name:arrays,path:nowhere.csv},{name:digits}]", ".parquet"),
    ("dataset.train='train['", "dataset.train=train[", "set \"dataset.train='train[:5000]'\""),
    ("dataset.train=train[:100]", "dataset.train=train[:100]", "dataset.train='train[:100]'"),
    # Tracking, restarts and the trainer.
    ("tracking.uri=ftp://ann:secret@nowhere", "tracking.uri=ftp://ann:***@nowhere", "write sqlite:///<file>"),
    ("tracking.uri=postgres://h/d", "tracking.uri=postgres://h/d", "is no tracking URI"),
    ("cluster.restarts=3", "cluster.restarts=3", "needs resume=auto", "add resume=auto name=exp1"),
    ("cluster.restarts=3  resume=auto  name=exp1", "nothing that starts the run again"),
    ("name=exp1", "name=exp1", "is for resume=auto", "add resume=auto"),
    ("name=a/b", "name=a/b", "must be letters, digits", "set name=exp1"),
    ("name=latest", "name=latest", "must not be a word that selects other runs"),
    ("trainer.checkpoint.best=train/loss", "trainer.checkpoint.best=train/loss", "train/epoch_loss"),
    ("trainer.steps_per_epoch=5  trainer.overfit_batches=2", "trainer.steps_per_epoch=5 is set"),
    ("trainer.epochs=3  trainer.steps=100", "one length, but trainer.epochs=3 is set too"),
    ("trainer.tokens=100", "trainer.tokens=100", "task=classification has no tokens", "set trainer.steps"),
    ("trainer.evaluate_every_steps=5  trainer.evaluate_every=2", "one interval, but trainer.evaluate_every=2 is set"),
    ("trainer.accumulate_steps=2", "engine=keras_dtensor does not support it", "set engine=jax"),
    ("trainer.callbacks=[{filename:a.csv}]", "trainer.callbacks=[{filename:", "mappings with a _target_ each"),
    ("trainer.callbacks=[{_target_:keras.callbacks.CSVLoger}]", "has no CSVLoger; did you mean CSVLogger?"),
    ("sweep.stop_on_failure=true", "only a sweep (-m, runner.sweep) reads it; remove sweep.stop_on_failure"),
    ("hydra.launcher.max_parallel=4", "hydra.launcher.max_parallel=4: only a sweep (-m, runner"),
    ("trainer.callbacks=[{_target_:nowhere.Seen}]", "trainer.callbacks[0]._target_=nowhere.Seen", "no module nowhere"),
    # Command lines.
    ("=5", "'=5':", "has no key"),
    ("a=b=c", "'a=b=c':", "in quotes"),
    ("+trainer.epochs=2", "+trainer.epochs=2:", "already at"),
    ("mesh=[batch2,batch4]", "mesh=[batch2,batch4]:", "in a sweep (-m): mesh=batch2,batch4"),
    ("mesh=../../etc/passwd", "mesh=../../etc/passwd:", "a path that leaves it"),
    ("plan=${oc.env:NO_SUCH_VARIABLE}", "plan=${oc.env:NO_SUCH_VARIABLE}:", "resolving interpolation"),
    # Hydra's own keys and flags.
    ("hydra.mode=FOO", "hydra.mode=FOO:", "expected one of [RUN, MULTIRUN]"),
    ("-m  hydra.mode=RUN", "hydra.mode=RUN: contradicts -m; set hydra.mode=MULTIRUN"),
    ("--resolve", "--resolve: needs --cfg; add --cfg job"),
    *(
        (override, f"{override}: unknown key of Hydra, or one that can't be set here; ")
        for override in (
            *("hydra.nosuch=1", "hydra.runtime.output_dir=/x", "hydra.job.num=3", "hydra.job.config_name=x"),
            *("hydra/env=default", "hydra.overrides.task=['trainer.epochs=99']", "hydra={job: {num: 3}}"),
        )
    ),
    ("hydra.output_subdir=../x", "hydra.output_subdir=../x:", "a folder's name"),
    ("hydra.callbacks.run=null", "hydra.callbacks.run=null:", "needs a _target_"),
    ("hydra/launcher=nope", "hydra/launcher=nope:", "processes"),
    ("hydra.searchpath=[nope]", "hydra.searchpath=[nope]:", "file://"),
    ("++hydra.searchpath=[file:///]", "++hydra.searchpath=[file:///]:", "without +; set hydra.searchpath=[file:///]"),
    ("trainer.epochs=1  --multrun", "--multrun:", "did you mean --multirun?"),
    ("trainer.epochs=1  --config-dir", "--config-dir", "must be an existing folder"),
    ("--config-name  nope", "--config-name nope:"),
    ("trainer.epochs=1  -m  resume=latest", "resume=latest:", "drop -m"),
    ("resume=latest  trainer.checkpoint.folder=nowhere", "resume=latest:", "start one: python -m runner"),
    # Sweeps: nothing is opened for them.
    ("-m  trainer.seed=1,2  +hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs:", "max_parallel"),
    ("-m  trainer.seed=interval(1,2)", "trainer.seed=interval(1,2):", "hydra/sweeper=optuna"),
    ("sweep.resume=latest", "sweep.resume=latest:", "type the sweep's whole command with -m"),
    ("-m  hydra/sweeper=optuna  trainer.seed=1", "hydra/sweeper=optuna:", "no key is swept"),
    # Values that would be computed with, or left out, without a word.
    ("optimizer.learning_rate=1e39", "optimizer.learning_rate=1e+39", "float32 rounds this value to inf"),
    ("trainer.steps=3000000000", "trainer.steps=3000000000", "at most 2,147,483,647 (int32)"),
    ("+engine.loop=host", "engine.loop=host", "keras_dtensor has no such key", "set engine=jax"),
    ("engine=core_dtensor", "engine=core_dtensor: trains the tf.Modules of model=mlp_core", "set model=mlp_core"),
    ("trainer.checkpoint.folder=/", "trainer.checkpoint.folder=/", "must not be the root of the file system"),
    ("trainer.checkpoint.folder='~no_one/a'", "there is no user 'no_one'; use an absolute path, or ./~no_one"),
    ("sweep.metric=eval/los", "did you mean eval/loss?"),
    ("sweep.metric=eval/loss  sweep.direction=maximize", "sweep.metric=eval/loss", "direction=minimize"),
    ("trainer.checkpoint.folder=s3://me:pass@b/a", "trainer.checkpoint.folder=s3://me:***@b/a", "credentials"),
    ("trainer.checkpoint.folder='s3://b/a?sig=x'", "sig=***", "must not be a signed URL"),
    ("dataset=arrays  dataset.path=http://b/a.npz", "dataset.path=http://b/a.npz", "must be a local path"),
    ("layout.inputs.label=[???]", "layout.inputs.label[0] is required"),
    ("trainer.epochs=${trainer.seed}  trainer.seed=???", "trainer.seed is required"),
    # Processes.
    ("cluster=single  cluster.processes=2", "cluster.processes=2", "only cluster=auto or explicit or local have it"),
    ("+cluster.processes=2", "cluster.processes=2", "cluster=single does not use this key", "set cluster=auto"),
    ("cluster=local  engine=jax", "cluster.processes=2: must divide the 1 devices of the mesh", "cluster.processes=1"),
    ("cluster=local  cluster.processes=null", "cluster.processes=null", "cluster=local does not give"),
    (f"{_EXPLICIT}  cluster.coordinator=h:1", "different for each process"),
    (f"{_EXPLICIT}  cluster.index=0", "set it, such as cluster.coordinator="),
    (f"{_EXPLICIT}  cluster.coordinator=127.0.0.1:29400", "set it for each; Kubernetes gives it"),
    (f"{_EXPLICIT}  cluster.coordinator=h:1  cluster.index=2", "from 0 to 1, different for each process"),
    ("cluster=auto", "no scheduler detected (the variables of Slurm, Open MPI", "a plan needs cluster.processes only"),
    ("mesh=batch2  cluster=local", "engine=keras_dtensor", "trains in one process only", "set engine=jax"),
    ("mesh=batch2  mesh.device=tpu  cluster=local  engine=jax", "mesh.device=tpu"),
]

# What looks alike and is meant: another schedule's keys at their defaults, as they stand in every option's file.
VALID = [
    "optimizer.schedule.name=cosine  optimizer.schedule.decay_rate=0.96  optimizer.schedule.boundaries=[]",
    "optimizer.clip.value=1e30  optimizer.beta_1=0",
]

# What users of other tools type, in lines by what it is. What their errors suggest is typed by one test.
FOREIGN = """
dataset=scans.npz | dataset=data/scans.npz | dataset=./scans.parquet | dataset=scans.txt | dataset=scans.arrow
dataset=data/ | dataset=user_module.load | dataset=cifar100 | dataset=kmnist | dataset=imagenet | dataset=fashion
optimizer=lion | optimizer=AdamW | optimizer=keras.optimizers.Nadam | optimizer=optax.lion | engine=jax  optimizer=muon
mesh=4gpus | mesh=4 | mesh=16gpus | mesh=2x4 | mesh=dp2_tp2 | mesh=model2 | mesh=batch2_sequence2
mesh=gpu | mesh=cpu | mesh=none | mesh = batch8 | mesh  =  batch8 | mesh.axis.batch=4 | gpus=4
model=user_module.build | model=user_module.py | model=user_module.py:build | task=user_module.loss
model=cnn | model=transformer | model=gpt2 | model=bert | model=llama | engine=tensorflow | engine=keras
hardware=a10g | hardware=h100_80g  engine=jax | hardware=a100  engine=jax | cluster=slurm | tracking=off
layout=ddp | layout=zero3 | layout=tp | strategy=ddp | task=mse | task=classify | task=ner | loss=mse  task=regression
lr=0.1 | --lr=0.1 | weight_decay=0.1 | epochs=2 | batch_size=[64,128] | dataset.batch_size=64,128 | precision=bf16
scheduler=cosine | clip_norm=1.0 | random_seed=3 | max_steps=5 | gradient_accumulation_steps=2 | patience=3
num_workers=2 | val_split=0.2 | fp16=true | experiment_name=mine | output_dir=outputs/mine | mesh=batch16
early_stopping=true | trainer.profile=true | trainer.epochz=5 | resume=auto  name=Ann's | tracking.run_name=Ann's
monitor=eval/loss | precision=fp16 | tracking.run_name=my run, 1 | --mesh=batch4 | --trainer.epochs=2 | initial_epoch=2
validation_freq=2 | validation_steps=2 | validation_batch_size=64
"""
FOREIGN += "|".join(f"trainer.callbacks=[{{_target_:keras.callbacks.{name}}}]" for name in STEERING)
