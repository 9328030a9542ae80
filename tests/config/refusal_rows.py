"""Configs that are invalid, each with what its one-line error must say; `tests.config.test_refusals` runs them."""

from __future__ import annotations

from tests.refusals import refusal

# A language model on packed rows.
_PACKED = (
    "dataset=custom dataset._target_=user_module.data dataset.pad={tokens:0} dataset.pack=true model=gpt "
    "task=language_model"
)

REFUSALS = [
    # Engines.
    refusal("engine=jx", "engine=jx", "did you mean engine=jax?"),
    refusal("engine=jax engine.loop=devise", "engine.loop=devise", "auto, device, host", "did you mean device?"),
    refusal("engine=jax engine.data=hosts", "engine.data=hosts", "auto, device, host", "did you mean host?"),
    refusal("engine.data=device", "engine.data=device", "unknown key", "set engine=jax, which has it"),
    refusal("engine=jax engine.precision=half", "engine.precision=half", "one of float32, bfloat16"),
    refusal(
        "engine.precision=bfloat16",
        "engine.precision=bfloat16",
        "engine=keras_dtensor supports float32 only",
        "set engine=jax, or",
    ),
    refusal(
        "engine=core_dtensor model=mlp_core engine.precision=bfloat16", "engine.precision=bfloat16", "core_dtensor"
    ),
    refusal("engine=jax engine.canary=false", "engine.canary", "unknown key"),
    refusal("engine=jax engine.state=mixed", "engine.state=mixed", "one of float32, master, bfloat16"),
    refusal("engine.state=bfloat16", "engine.state=bfloat16", "unknown key", "set engine=jax"),
    refusal("engine=jax engine.state=master", "engine.state=master", "set engine.precision=bfloat16 too"),
    # Groups, options and keys that are not there.
    refusal(
        "mesh=batch9", "mesh=batch9", "options of mesh: batch1_model1, batch2", "any size works: mesh.axes.batch=9"
    ),
    refusal("optimizer=adan", "optimizer=adan", "did you mean optimizer=adam?"),
    refusal("experiment=nope", "experiment=nope", "choose one, as experiment="),
    refusal("nosuch=1", "nosuch=1", "groups: advise, branch, cluster, dataset"),
    refusal("trainer.epoch=2", "trainer.epoch=2", "did you mean trainer.epochs?"),
    refusal("+trainer.epoch=2", "trainer.epoch", "unknown key", "did you mean epochs?"),
    refusal("dataset=arrays dataset.augment.flip=up", "dataset.augment.flip=up", "invalid literal"),
    refusal("+nosuch=1", "nosuch=1", "groups are engine, mesh"),
    refusal("layout.rules.0.match=x", "layout.rules.0.match=x", "layout.rules is a list"),
    refusal("model.hiden=[3]", "model.hiden=[3]", "did you mean model.hidden?"),
    refusal("hydra.nosuch=1", "hydra.nosuch=1", "unknown key"),
    # The grammar of overrides.
    refusal("trainer.epochs", "'trainer.epochs'", "write key=value"),
    refusal("trainer.epochs=[1", "'trainer.epochs=[1'", "lists as [a,b]"),
    # Groups that are taken away or that hold something else.
    refusal("mesh=null", "mesh=null", "must be a string"),
    refusal("~mesh", "mesh=null", "leave mesh out to use the default"),
    refusal("+optimizer=sgd", "optimizer=sgd", "Multiple values for optimizer"),
    refusal("mesh.axes=8", "mesh.axes=8", "must be a mapping from names to integers; set mesh.axes={batch:8}"),
    refusal("layout.rules=d1", "layout.rules=d1", "must be a list of mappings"),
    refusal("layout.rules=[{mach:d1,spec:[null]}]", "layout.rules[0].mach", "unknown key"),
    refusal("optimizer.schedule.name=plateau", "optimizer.schedule.name=plateau", "works with any", "plateau.metric"),
    refusal(
        "optimizer.schedule.name=ReduceLROnPlateau",
        "set optimizer.schedule.plateau.metric=auto",
    ),
    refusal("optimizer.schedule=cosine", "error: optimizer.schedule=cosine", "optimizer.schedule.name"),
    refusal("tracking.tags=[a]", "tracking.tags=[a]", "Cannot merge"),
    # Types.
    refusal(
        "trainer.epochs=many", "trainer.epochs=many", "must be an integer; set trainer.epochs=3", "set trainer.epochs"
    ),
    refusal("trainer.epochs=1.5", "trainer.epochs=1.5", "must be an integer"),
    refusal(
        "trainer.epochs=null", "trainer.epochs=null", "a run needs a length", "set trainer.epochs=3, trainer.steps"
    ),
    refusal("dataset.shuffle=maybe", "dataset.shuffle=maybe", "must be true or false"),
    refusal("mesh.axes.batch=two", "mesh.axes.batch=two", "set mesh.axes.batch"),
    refusal("name=${oc.env:NO_SUCH_VARIABLE}", "name", "NO_SUCH_VARIABLE"),
    refusal("dataset.data_dir=${oc.env:NO_SUCH_VARIABLE}", "dataset.data_dir", "NO_SUCH_VARIABLE"),
    refusal("hardware=h100 hardware.efficiency=1.0", "must be a list of numbers; set hardware.efficiency=[0.45,0.85]"),
    refusal("hardware=h100 hardware.efficiency=[0.5]", "set hardware.efficiency=[0.45,0.85]"),
    refusal("tracking.uri=[a]", "must be a string; set tracking.uri=sqlite:///mlflow.db"),
    # Values of 14,000 characters.
    refusal(f"model.hidden=[0,{','.join(['128'] * 3489)}]", "...]: sizes must be at least 1; set model.hidden=[128]"),
    refusal(f"name={'x' * 13960}", "...: must be letters", "set name=exp1"),
    refusal(f"trainer.seed={'1' * 13960}", "trainer.seed=111", "can't be parsed as an override"),
    # Sizes.
    refusal("trainer.epochs=0", "trainer.epochs=0", "at least 1"),
    refusal("trainer.steps_per_call=0", "trainer.steps_per_call=0", "at least 1"),
    refusal("dataset.batch_size=0", "dataset.batch_size=0", "at least 1"),
    refusal("dataset.batch_size=-4", "dataset.batch_size=-4", "must be at least 1; set dataset.batch_size=128"),
    refusal("dataset.prefetch=0", "dataset.prefetch=0", "at least 1"),
    refusal("engine.intra_op_threads=0", "engine.intra_op_threads=0", "from 1 to 1,024"),
    refusal("mesh=batch8 dataset.batch_size=100", "dataset.batch_size=100", "multiple of 8", "dataset.batch_size=104"),
    refusal(
        "mesh=batch8 dataset.eval_batch_size=1001",
        "dataset.eval_batch_size=1001",
        "multiple of 8",
        "dataset.eval_batch_size=1008",
    ),
    refusal("dataset.image_size=[28]", "dataset.image_size=[28]", "[height, width]"),
    refusal("trainer.seed=-1", "trainer.seed=-1", "must be at least 0"),
    # Meshes.
    refusal("mesh.axes.batch=0", "mesh.axes.batch=0", "at least 1"),
    refusal(
        "mesh.axes.batch=16",
        "{batch:16}",
        "needs 16 devices, but only 8 CPU devices are available",
        "mesh.cpu_devices=16",
    ),
    refusal(
        "mesh=batch4_model2 mesh.axes.batch=-1 mesh.axes.model=-1", "mesh.axes.model=-1", "only one axis may be -1"
    ),
    refusal("mesh=batch4_model2 mesh.axes.batch=3 mesh.axes.model=-1", "mesh.axes.model=-1", "must divide the 8"),
    refusal("mesh.axes={model:4}", "layout.inputs", "batch"),
    refusal("mesh.device=quantum", "mesh.device=quantum", "must be one of auto, cpu, gpu, tpu"),
    refusal("mesh.cpu_devices=0", "mesh.cpu_devices=0", "1 to 256"),
    refusal("+mesh.axes.my-axis=2", "mesh.axes.my-axis=2", "letters, digits and _"),
    # Layouts.
    refusal(
        "layout.rules=[{match:d1/kernel,spec:[null,tensor]}]",
        "layout.rules[0].spec=[null,tensor]",
        "no axis 'tensor'",
        "mesh.axes.tensor=2",
    ),
    refusal("layout.inputs.label=[rows]", "layout.inputs.label=[rows]", "no axis 'rows'"),
    refusal(
        "mesh=batch2_model4 layout.rules=[{match:d1/kernel,spec:[model,model]}]",
        "layout.rules[0].spec=[model,model]",
        "replace one model by null",
    ),
    refusal("layout.rules=[{match:'d1/(',spec:[null]}]", "layout.rules[0].match=d1/(", "regular expression"),
    refusal(
        "mesh=batch8 layout=megatron",
        "layout.rules[0].transformer=model",
        "no axis 'model' (its axis: batch)",
        "mesh=batch2_model4, mesh=batch4_model2, mesh=model8, or set +mesh.axes.model=1 for one device",
    ),
    refusal("mesh=batch8 layout=spatial", "layout.inputs.image=[batch,height,null,null]", "mesh=batch2_height2"),
    refusal("layout.rules=[{match:d1/kernel,shard:rows}]", "layout.rules[0].shard=rows", "no axis 'rows'"),
    refusal("layout.rules=[{match:d1/kernel}]", "layout.rules[0].spec=null", "exactly one of spec, shard"),
    refusal(
        "layout.rules=[{match:d1/kernel,spec:[null,batch],shard:batch}]",
        "layout.rules[0].shard=batch",
        "but this one has spec too",
        "remove shard or spec",
    ),
    refusal(
        "layout.rules=[{match:d1/kernel,spec:[null,null],min_elements:9}]",
        "layout.rules[0].min_elements=9",
        "works with shard only",
    ),
    refusal(
        "layout.rules=[{match:d.*,shard:batch},{match:d.*,spec:[batch]}]",
        "layout.rules[1].match=d.*",
        "layout.rules[0] before it has the same match and shadows it completely",
    ),
    refusal(
        "mesh=batch2_model4 layout.inputs.image=[batch] layout.inputs.label=[model]",
        "layout.inputs.label=",
        "must equal that of image, batch; set layout.inputs.label=[batch]",
    ),
    # Optimizers.
    refusal("optimizer.name=adan", "optimizer.name=adan", "did you mean adam?"),
    refusal("+optimizer.target=os.system", "optimizer.target: unknown key"),
    refusal("+optimizer.options={command:id}", "optimizer.options: unknown key"),
    refusal("optimizer.learning_rate=0", "optimizer.learning_rate=0", "above 0"),
    refusal("optimizer.learning_rate=nan", "optimizer.learning_rate=nan", "above 0"),
    refusal("optimizer.beta_1=1.0", "optimizer.beta_1=1.0", "below 1"),
    refusal(
        "+optimizer.momentum=0.5",
        "optimizer.momentum=0.5",
        "optimizer=adam has no such key (its keys: beta_1",
        "remove optimizer.momentum",
    ),
    refusal(
        "optimizer=sgd optimizer.momentum=0 optimizer.nesterov=true",
        "optimizer.nesterov=true",
        "optimizer.momentum=0.9",
    ),
    refusal(
        "optimizer.clip.norm=1 optimizer.clip.value=2",
        "optimizer.clip.value=2.0",
        "clip.norm is set",
        "optimizer.clip.norm=null",
    ),
    refusal("optimizer.schedule.name=lineal", "optimizer.schedule.name=lineal", "did you mean linear?"),
    refusal("optimizer.schedule.name=custom", "optimizer.schedule.name=custom", "set optimizer.schedule._target_="),
    refusal("optimizer.schedule.name=inverse_sqrt", "name=inverse_sqrt", "set optimizer.schedule.warmup_steps=1000"),
    refusal("optimizer.schedule.name=cosine_restarts", "optimizer.schedule.decay_steps=null", "decay_steps=1000"),
    refusal("optimizer.schedule.initial_factor=0.1", "initial_factor=0.1", "set optimizer.schedule.warmup_steps=1000"),
    refusal(
        "optimizer.schedule._target_=tests.optim.rates.halving optimizer.schedule.name=cosine",
        "can't be used with optimizer.schedule.name=cosine",
    ),
    refusal(
        "optimizer.schedule.plateau.metric=loss", "optimizer.schedule.plateau.metric=loss", "eval/loss, eval/accuracy"
    ),
    refusal("optimizer.schedule.plateau.factor=1", "optimizer.schedule.plateau.factor=1", "above 0 and below 1"),
    refusal(
        "optimizer.schedule.name=piecewise optimizer.schedule.boundaries=[10] optimizer.schedule.factors=[1.0]",
        "optimizer.schedule.factors=[1.0]",
        "must have 2 entries, one more than optimizer.schedule.boundaries",
    ),
    refusal("optimizer.schedule.decay_steps=5", "optimizer.schedule.decay_steps=5", "optimizer.schedule.name=cosine"),
    refusal("optimizer.schedule.name=exponential", "optimizer.schedule.decay_steps=null", "decay_steps=1000"),
    # Builders.
    refusal("model=custom", "model._target_", "is required; set model._target_="),
    refusal("model._target_=3", "model._target_=3", "an import path"),
    refusal("model=custom model._target_=build", "model._target_=build", "an import path with a dot"),
    refusal("model=custom model._target_=no_such_module.build", "no_such_module.build", "no module no_such_module"),
    refusal("model.hidden=[0]", "model.hidden=[0]", "at least 1"),
    refusal("model=custom model._target_=os.system", "model._target_=os.system", "function of Python's own"),
    # Secrets.
    refusal(
        "tracking.uri='http://ann:***@host'",
        "tracking.uri=http://ann:***@host",
        "never stored",
        "type tracking.uri again with it or set MLFLOW_TRACKING_URI",
    ),
    refusal(
        "tracking=none tracking.uri='http://ann:p@ss@host'",
        "tracking.uri=http://ann:***@host",
        "remove tracking=none or tracking.uri",
    ),
    refusal("tracking.uri='http://ann:p@ss@host' trainer.epochs=[1", "'trainer.epochs=[1'"),
    refusal("tracking.uri=[http://ann:p4ss@host]", "tracking.uri=", "ann:***@host"),
    # Tasks.
    refusal(
        "task=segmentation dataset.image_size=[32,48]",
        "dataset.image_size=[32,48]",
        "needs the class numbers of its masks",
        "dataset.augment=[{name: resize, size: [32, 48]}]",
    ),
    refusal("task=regresion", "task=regresion", "did you mean task=regression?"),
    refusal(
        "task.name=ranking",
        "task.name=ranking",
        "must be one of classification, ",
    ),
    refusal("task.label_smoothing=1.5", "task.label_smoothing=1.5", "at least 0 and below 1"),
    refusal("task.class_weights=[1,-2]", "task.class_weights=[1,-2]", "at least 0"),
    refusal("task.metrics=AUC", "task.metrics=AUC", "must be a list of metrics", "set task.metrics=[AUC]"),
    refusal("task.metrics=[AUCC]", "task.metrics=AUCC: is not a Keras metric; did you mean AUC?"),
    refusal("task=regression task.metrics=[mse]", "task.metrics=mse", "did you mean MeanSquaredError?"),
    refusal("task.metrics=[Hinge]", "task.metrics=Hinge", "does not fit the targets of the task"),
    refusal("task=binary task.metrics=[{AUC:{curve:PR}}]", "task.metrics=AUC: there is a metric auc already"),
    refusal("task.metrics=[AUC]", "task.metrics=[AUC]: is Keras 3's, which engine=keras_dtensor", "set engine=jax"),
    refusal("task.loss=focal", "task.loss=focal", "must be one of"),
    refusal("task.loss=tversky", "task.loss=tversky: is Keras 3's, which engine=keras_dtensor", "set engine=jax"),
    refusal("task=regression task.loss=mse", "task.loss=mse", "set task.loss=mean_squared_error"),
    refusal("task=regression task.delta=far", "task.delta=far", "must be a number"),
    refusal("task=regression +task.top_k=5", "task.top_k", "task=regression has name, target"),
    refusal("task=custom", "task._target_ is required"),
    refusal(
        "task=several", "task.outputs={}", "needs at least two outputs", "set task.outputs={age:{name:regression}"
    ),
    refusal("task=several task.outputs={a:regression,b:binery}", "task.outputs.b.name=binery", "must be one of"),
    refusal("task=several task.outputs={a:regression,b:{weight:1}}", "task.outputs.b={weight:1}", "needs the task"),
    refusal(
        "task=several task.outputs={a:regression,b:{name:binary,weight:-1}}",
        "task.outputs.b.weight=-1.0",
        "must be at least 0",
    ),
    refusal(
        "task=several task.outputs={a:{name:regression,weight:0},b:{name:binary,weight:0}}",
        "task.outputs={a:{name:regression,weight:0},b:{name:binary,weight:0}}: at least one output must have a weight",
    ),
    refusal("task=several task.outputs={a:regression,b:custom}", "task.outputs.b._target_ is required"),
    refusal(
        "task=several task.outputs={a:regression,b:{name:step,_target_:user_module.build}}",
        "task.outputs.b.name=step",
        "can't judge one of several outputs",
    ),
    refusal(
        "engine=core_dtensor model=mlp_core task=several task.outputs={a:regression,b:binary}",
        "engine=core_dtensor",
        "trains models of one output, but task=several judges several",
    ),
    refusal(
        "engine=jax trainer.accumulate_steps=2 task=several "
        "task.outputs={a:regression,b:{name:positions,ignore_index:0}}",
        "trainer.accumulate_steps=2",
        "must be 1 with task.outputs.b.ignore_index=0",
    ),
    refusal(
        "trainer.early_stopping.metric=b_acuracy task=several task.outputs={a:regression,b:binary}",
        "trainer.early_stopping.metric=b_acuracy",
        "did you mean",
    ),
    refusal(
        "task=custom task._target_=user_module.loss task.whole_batch=true trainer.accumulate_steps=2",
        "trainer.accumulate_steps=2",
        "must be 1 with task=custom, whose loss compares all rows of a batch",
    ),
    # Datasets, trainer, tracking.
    refusal("dataset=arrays", "dataset.path is required"),
    refusal("dataset=arrays dataset.path=nowhere.csv", "dataset.path=nowhere.csv", ".parquet"),
    refusal("dataset=parquet dataset.path=nowhere.parquet", "dataset.path=nowhere.parquet", "a folder of them"),
    refusal("dataset=mixture", "dataset.parts is required"),
    refusal("dataset=mixture dataset.parts=[]", "dataset.parts=[]", "two datasets or more", "{name: arrays"),
    refusal(
        "dataset=mixture dataset.parts=[{name:arrays,path:nowhere.csv},{name:digits}]",
        "dataset.parts[0].path=nowhere.csv",
        ".parquet",
    ),
    refusal("dataset=huggingface dataset.path=ylecun/mnist", "dataset.path=ylecun/mnist", "nothing is downloaded"),
    refusal("+dataset.pack=true", "dataset.pack=true", "dataset=mnist has no such key"),
    refusal(
        "dataset=arrays dataset.path=. +dataset.pad_length=5",
        "dataset.pad_length=5: needs dataset.pad, whose arrays it applies to; set dataset.pad={tokens:0}",
    ),
    refusal("dataset=digits +dataset.pack=true", "dataset.pack=true", "dataset=digits has no such key"),
    refusal(
        "dataset=pydoc dataset.pack=true dataset.documents=joined task=language_model model=gpt",
        "dataset.pack=true: can't be combined with dataset.documents=joined",
    ),
    refusal(
        f"{_PACKED} dataset.pad=null",
        "dataset.pack=true: needs dataset.pad, whose arrays it packs; set dataset.pad={tokens:0} too",
    ),
    refusal(
        f"{_PACKED} +dataset.pad.segments=0",
        "dataset.pad={tokens:0.0,segments:0.0}: must not",
        "which dataset.pack adds",
    ),
    refusal(
        f"{_PACKED} dataset.augment=[{{name:flip}}]", "dataset.augment=", "so it can't be combined with dataset.pack"
    ),
    refusal(
        f"{_PACKED} task=classification",
        "dataset.pack=true",
        "task=classification has one label per example",
        "set task=language_model",
    ),
    refusal(f"{_PACKED} model=mlp", "dataset.pack=true", "keep the examples of a row apart", "set model=gpt"),
    refusal(
        "+dataset._target_=user_module.build",
        "dataset._target_=",
        "dataset=mnist has no such key",
        "set dataset=custom",
    ),
    refusal("+dataset.path=houses.csv", "dataset.path=houses.csv", "remove dataset.path, or set dataset=arrays"),
    refusal("dataset=image_folder dataset.path=. dataset.channels=2", "channels=2: must be 1, 3, 4 or null; remove"),
    refusal("dataset.augment=3", "dataset.augment=3", "must be a list of mappings"),
    refusal("dataset.train='train['", "dataset.train=train[", "set \"dataset.train='train[:5000]'\""),
    refusal("dataset.test='test[:5%:]'", "dataset.test=test[:5%:]", "is not a split, which is name"),
    refusal("dataset.train=train[:100]", "dataset.train=train[:100]", "dataset.train='train[:100]'"),
    refusal("dataset.remainder=keep", "dataset.remainder=keep", "one of drop, pad"),
    refusal("tracking=none tracking.uri=sqlite:///x.db", "tracking.uri=sqlite:///x.db", "records nothing"),
    refusal("tracking.uri=ftp://ann:secret@nowhere", "tracking.uri=ftp://ann:***@nowhere", "write sqlite:///<file>"),
    refusal("tracking.uri=postgres://h/d", "tracking.uri=postgres://h/d", "did you mean postgresql://?"),
    refusal("tracking.uri=mlruns", "tracking.uri=mlruns", "set tracking.uri=sqlite:///mlruns.db"),
    refusal("tracking.name=foo", "tracking.name=foo", "one of mlflow, none"),
    refusal("devices=8", "devices=8", "only python -m runner.advise has this key", "set mesh=batch8"),
    refusal("step=100", "step=100", "only python -m runner.verify has this key", "set trainer.steps=100"),
    refusal("cluster.restarts=3", "cluster.restarts=3", "needs resume=auto", "add resume=auto name=exp1"),
    refusal(
        "cluster.restarts=3 resume=auto name=exp1",
        "cluster.restarts=3",
        "nothing that starts the run again",
        "write python -m runner.supervise -- before the command",
    ),
    refusal(
        "cluster=local cluster.processes=1 cluster.restarts=3 resume=auto name=exp1",
        "cluster.restarts=3",
        "cluster=local with a single process has nothing that starts the run again",
        "write python -m runner.supervise -- before the command",
    ),
    refusal("cluster.restart_window=3x", "cluster.restart_window=3x", "with a unit", "set cluster.restart_window=1h"),
    refusal("name=exp1", "name=exp1", "is for resume=auto", "add resume=auto"),
    refusal("name=a/b", "name=a/b", "must be letters, digits", "set name=exp1"),
    refusal("name=latest", "name=latest", "must not be a word that selects other runs"),
    refusal("trainer.on_nan=resume", "trainer.on_nan=resume", "stop, restore, continue", "did you mean restore?"),
    refusal("trainer.nan_restores=9", "trainer.nan_restores=9", "no effect without trainer.on_nan=restore"),
    # A typed value counts, although it is the one that null stands for.
    refusal("trainer.nan_restores=3", "trainer.nan_restores=3", "no effect without trainer.on_nan=restore"),
    refusal(
        "trainer.checkpoint.enabled=false trainer.checkpoint.every_minutes=1",
        "trainer.checkpoint.every_minutes=1.0",
        "no effect without trainer.checkpoint.enabled=true",
    ),
    refusal("tracking=none tracking.run_name=a", "tracking.run_name=a", "no effect with tracking=none"),
    refusal("trainer.nan_rate_factor=0.1", "trainer.nan_rate_factor=0.1", "set trainer.on_nan=restore, or remove"),
    refusal("trainer.profile.steps=5", "trainer.profile.steps=5", "no effect without trainer.profile.start=10"),
    refusal(
        "trainer.checkpoint.enabled=false trainer.checkpoint.every_steps=9",
        "trainer.checkpoint.every_steps=9",
        "no effect without trainer.checkpoint.enabled=true",
    ),
    refusal("trainer.nan_rate_factor=1", "trainer.nan_rate_factor=1", "above 0 and below 1"),
    refusal(
        "trainer.on_nan=restore trainer.checkpoint.enabled=false", "trainer.on_nan=restore", "checkpoint.enabled=true"
    ),
    refusal("trainer.on_nan=restore trainer.checkpoint.keep=1", "trainer.checkpoint.keep=1", "must be at least 2"),
    refusal("trainer.early_stopping.metric=loss", "trainer.early_stopping.metric=loss", "eval/loss, eval/accuracy"),
    refusal("trainer.checkpoint.best=train/loss", "trainer.checkpoint.best=train/loss", "train/epoch_loss"),
    refusal("trainer.early_stopping.patience=0", "trainer.early_stopping.patience=0", "at least 1"),
    refusal(
        "trainer.steps_per_epoch=5 trainer.overfit_batches=2",
        "trainer.overfit_batches=2",
        "trainer.steps_per_epoch=5 is set",
    ),
    refusal(
        "trainer.epochs=3 trainer.steps=100",
        "trainer.steps=100",
        "one length, but trainer.epochs=3 is set too",
        "set trainer.epochs=null or trainer.steps=null",
    ),
    refusal(
        "experiment=keras_tutorial trainer.steps=9", "trainer.steps=9", "trainer.epochs=", "set trainer.epochs=null"
    ),
    refusal(
        "task=language_model model=gpt dataset=pydoc trainer.tokens=5 trainer.steps=100",
        "trainer.tokens=5",
        "one length, but trainer.steps=100 is set too",
    ),
    refusal("trainer.tokens=100", "trainer.tokens=100", "task=classification has no tokens", "set trainer.steps"),
    refusal(
        "trainer.evaluate_every_steps=5 trainer.evaluate_every=2",
        "trainer.evaluate_every_steps=5",
        "one interval, but trainer.evaluate_every=2 is set too",
    ),
    refusal("trainer.max_steps=5", "trainer.max_steps=5", "did you mean trainer.steps?"),
    refusal(
        "mesh=batch4 dataset.batch_size=128 trainer.accumulate_steps=3",
        "dataset.batch_size=128",
        "must be a multiple of 12 (size of mesh axis 'batch' times trainer.accumulate_steps=3)",
        "dataset.batch_size=120 or dataset.batch_size=132",
    ),
    refusal(
        "trainer.accumulate_steps=3", "dataset.batch_size=128", "must be a multiple of 3 (trainer.accumulate_steps=3)"
    ),
    refusal("trainer.accumulate_steps=0", "trainer.accumulate_steps=0", "at least 1"),
    refusal(
        "optimizer.reread_slots=true trainer.accumulate_steps=2",
        "trainer.accumulate_steps=2",
        "optimizer.reread_slots",
    ),
    refusal("optimizer.ema.decay=1", "optimizer.ema.decay=1", "at least 0 and below 1"),
    refusal("trainer.profile.start=-1", "trainer.profile.start=-1", "must be at least 0"),
    refusal("trainer.progress=foo", "trainer.progress=foo", "one of auto, bar, lines, none"),
    refusal("engine.name=other", "engine.name=other", "keras_dtensor"),
]
