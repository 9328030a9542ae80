"""Command lines that are refused for what they are, whatever the config holds; `tests.test_refusals` runs them."""

from __future__ import annotations

# A command line, its arguments apart by two spaces, and what the one line must hold.
COMMAND_LINES: list[tuple[str, ...]] = [
    # Keys and values that no override can have.
    ("=5", "'=5':", "has no key"),
    ("==", "'==':"),
    ("~", "'~':", "has no key"),
    ("a=b=c", "'a=b=c':", "in quotes"),
    ("ümlaut=1", "'ümlaut=1':", "write key=value"),
    ("mesh=ümlaut", "'mesh=ümlaut':"),
    ("~nope", "~nope:", "does not exist"),
    ("~mesh=batch2", "~mesh=batch2:", "No match in the defaults list"),
    ("+trainer.epochs=2", "+trainer.epochs=2:", "already at"),
    ("+mesh=batch8", "+mesh=batch8:", "Multiple values for mesh"),
    ("trainer.epochs=1,2", "trainer.epochs=1,2:", "add --multirun"),
    ("mesh=single,batch2", "mesh=single,batch2:", "add --multirun"),
    ("trainer.epochs=range(1,3)", "trainer.epochs=range(1,3):", "--multirun"),
    # Options.
    ("mesh=../../etc/passwd", "mesh=../../etc/passwd:", "a path that leaves it"),
    ("mesh=/etc/passwd", "mesh=/etc/passwd:", "a path that leaves it"),
    ("mesh=../model/mlp", "mesh=../model/mlp:", "a path that leaves it"),
    ("mesh=sub/thing", "mesh=sub/thing:", "choose one, as mesh=batch1_model1"),
    ("experiment=", "experiment=:", "options of experiment"),
    ("trainer=[a]", "trainer=[a]:", "the name of one option"),
    ("plan=${oc.env:NO_SUCH_VARIABLE}", "plan=${oc.env:NO_SUCH_VARIABLE}:", "resolving interpolation"),
    ("mesh=${trainer.epochs}", "mesh=${trainer.epochs}:", "resolving interpolation"),
    ("model=[mlp]", "model=[mlp]:", "the name of one option"),
    # Wrong values inside lists and mappings.
    ("mesh.axes.batch=[2]", "mesh.axes.batch=[2]:", "must be an integer"),
    ("mesh.axes={batch:{a:1}}", "mesh.axes.batch={a:1}:", "must be an integer"),
    ("layout.rules=[{match: d1/kernel, spec: [null,null], optional: maybe}]", "error: layout.rules[0].optional=maybe"),
    ("layout.rules=[3]", "layout.rules[0]=3:", "must be a mapping with the keys match"),
    ("layout.inputs.image=[[batch]]", "layout.inputs.image[0]=[batch]:"),
    ("tracking.tags={a: {b: c}}", "tracking.tags.a={b:c}:", "must be a string"),
    ("optimizer.schedule.boundaries=[a]", "optimizer.schedule.boundaries[0]=a:", "must be an integer"),
    # Hydra's own keys.
    ("hydra.mode=FOO", "hydra.mode=FOO:", "RUN or MULTIRUN"),
    ("-m  hydra.mode=RUN", "hydra.mode=RUN:", "-m"),
    ("hydra.sweep.dir=null", "hydra.sweep.dir=null:", "the path of a folder"),
    ("hydra.sweep.subdir=null", "hydra.sweep.subdir=null:", "the path of a folder"),
    ("hydra.job.name=[a]", "hydra.job.name=[a]:"),
    ("hydra.job.chdir=maybe", "hydra.job.chdir=maybe:", "true or false"),
    ("hydra.verbose={a:1}", "hydra.verbose={a:1}:", "names of loggers"),
    ("hydra.output_subdir=[a]", "hydra.output_subdir=[a]:"),
    ("hydra.output_subdir=../x", "hydra.output_subdir=../x:", "a folder's name"),
    ("hydra.callbacks=null", "hydra.callbacks=null:", "unknown key of Hydra"),
    ("hydra.callbacks.run=null", "hydra.callbacks.run=null:", "can't be changed"),
    ("~hydra.callbacks.run", "~hydra.callbacks.run:"),
    ("+hydra.callbacks.x=3", "+hydra.callbacks.x=3:", "_target_"),
    ("hydra/launcher=nope", "hydra/launcher=nope:", "processes"),
    ("hydra.searchpath=[nope]", "hydra.searchpath=[nope]:", "file://"),
    ("hydra.overrides.task=[x]", "hydra.overrides.task=[x]:"),
    ("hydra=nope", "hydra=nope:"),
    # Flags.
    ("trainer.epochs=1  --multrun", "--multrun:", "did you mean --multirun?"),
    ("--experimental-rerun  x.pkl", "--experimental-rerun:", "unknown flag"),
    ("--cfg  foo", "--cfg foo:", "must be job, hydra or all"),
    ("trainer.epochs=1  --config-dir", "--config-dir", "must be an existing folder"),
    ("trainer.epochs=1  --config-dir  nowhere  mesh=single", "--config-dir nowhere:", "must be an existing folder"),
    ("--config-name  nope", "--config-name nope:"),
    ("trainer.epochs=1  -m  resume=latest", "resume=latest:", "drop -m"),
    # Checkpoints that are not there.
    ("resume=latest  trainer.checkpoint.folder=nowhere", "resume=latest:", "start one: python -m runner"),
    # Sweeps: nothing is opened for them.
    ("-m  trainer.seed=1,2  hydra.launcher.max_parallel=0", "hydra.launcher.max_parallel=0:", "at least 1"),
    ("-m  trainer.seed=1,2  hydra.launcher.timeout=0", "hydra.launcher.timeout=0.0:", "must be above 0 seconds"),
    ("-m  trainer.seed=1,2  +hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs=0:", "max_parallel"),
    ("-m  trainer.seed=interval(1,2)", "trainer.seed=interval(1,2):", "hydra/sweeper=optuna"),
    ("experiment=search_optimizer  hydra/sweeper=grid", "unknown key (hydra/sweeper=grid has params)", "optuna"),
    ("-m  hydra/sweeper=optuna  trainer.seed=1", "hydra/sweeper=optuna:", "no key is swept"),
]
