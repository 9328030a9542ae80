"""Command lines that are refused for what they are, whatever the config holds; `tests.test_refusals` runs them."""

from __future__ import annotations

# A command line, its arguments apart by two spaces, and what the one line must hold.
COMMAND_LINES: list[tuple[str, ...]] = [
    # Keys and values that no override can have.
    ("=5", "'=5' is refused", "names no key"),
    ("==", "'==' is refused"),
    ("~", "'~' is refused", "names no key"),
    ("a=b=c", "'a=b=c' is refused", "in quotes"),
    ("ümlaut=1", "'ümlaut=1' is refused", "write key=value"),
    ("mesh=ümlaut", "'mesh=ümlaut' is refused"),
    ("~nope", "~nope is refused", "no such key to take away"),
    ("~mesh=batch2", "~mesh=batch2 is refused", "not what mesh holds"),
    ("+trainer.epochs=2", "+trainer.epochs=2 is refused", "write trainer.epochs=2"),
    ("+mesh=single", "+mesh=single is refused", "write mesh=single"),
    ("trainer.epochs=1,2", "trainer.epochs=1,2 is refused", "add -m"),
    ("mesh=single,batch2", "mesh=single,batch2 is refused", "add -m to run each"),
    ("trainer.epochs=range(1,3)", "trainer.epochs=range(1,3) is refused", "add -m"),
    # Options.
    ("mesh=../../etc/passwd", "mesh=../../etc/passwd is refused", "that group's folder"),
    ("mesh=/etc/passwd", "mesh=/etc/passwd is refused", "that group's folder"),
    ("mesh=../model/mlp", "mesh=../model/mlp is refused", "that group's folder"),
    ("mesh=sub/thing", "mesh=sub/thing is refused", "choose one, as mesh=batch1_model1"),
    ("experiment=", "experiment= is refused", "options are"),
    ("trainer=[a]", "trainer=[a] is refused", "the name of one option"),
    ("plan=${oc.env:NO_SUCH_VARIABLE}", "plan=${oc.env:NO_SUCH_VARIABLE} is refused", "options are default"),
    ("mesh=${trainer.epochs}", "mesh=${trainer.epochs} is refused", "options are batch1_model1"),
    ("model=[mlp]", "model=[mlp] is refused", "the name of one option"),
    # Wrong values inside lists and mappings.
    ("mesh.axes.batch=[2]", "mesh.axes.batch=[2] is refused", "type int"),
    ("mesh.axes={batch:{a:1}}", "mesh.axes.batch={'a': 1} is refused", "type int"),
    ("layout.rules=[{match: d1/kernel, spec: [null,null], optional: maybe}]", "error: layout.rules[0].optional=maybe"),
    ("layout.rules=[3]", "layout.rules[0]=3 is refused", "keys under it: match"),
    ("layout.inputs.image=[[batch]]", "layout.inputs.image[0]=['batch'] is refused"),
    ("tracking.tags={a: {b: c}}", "tracking.tags.a={'b': 'c'} is refused", "type str"),
    ("optimizer.schedule.boundaries=[a]", "optimizer.schedule.boundaries[0]=a is refused", "type int"),
    # Hydra's own keys.
    ("hydra.mode=FOO", "hydra.mode=FOO is refused", "RUN or MULTIRUN"),
    ("-m  hydra.mode=RUN", "hydra.mode=RUN is refused", "-m"),
    ("hydra.sweep.dir=null", "hydra.sweep.dir=null is refused", "the path of a folder"),
    ("hydra.sweep.subdir=null", "hydra.sweep.subdir=null is refused", "the path of a folder"),
    ("hydra.job.name=[a]", "hydra.job.name=[a] is refused"),
    ("hydra.job.chdir=maybe", "hydra.job.chdir=maybe is refused", "true or false"),
    ("hydra.verbose={a:1}", "hydra.verbose={a:1} is refused", "names of loggers"),
    ("hydra.output_subdir=[a]", "hydra.output_subdir=[a] is refused"),
    ("hydra.output_subdir=../x", "hydra.output_subdir=../x is refused", "a folder's name"),
    ("hydra.callbacks=null", "hydra.callbacks=null is refused", "no such key that can be set"),
    ("hydra.callbacks.run=null", "hydra.callbacks.run=null is refused", "the program's own"),
    ("~hydra.callbacks.run", "~hydra.callbacks.run is refused"),
    ("+hydra.callbacks.x=3", "+hydra.callbacks.x=3 is refused", "_target_"),
    ("hydra/launcher=nope", "hydra/launcher=nope is refused", "processes"),
    ("hydra.searchpath=[nope]", "hydra.searchpath=[nope] is refused", "file://"),
    ("hydra.overrides.task=[x]", "hydra.overrides.task=[x] is refused"),
    ("hydra=nope", "hydra=nope is refused"),
    # Flags.
    ("trainer.epochs=1  --multrun", "--multrun is refused", "did you mean --multirun?"),
    ("--experimental-rerun  x.pkl", "--experimental-rerun is refused", "no such flag"),
    ("--cfg  foo", "--cfg foo is refused", "one of job, hydra, all"),
    ("trainer.epochs=1  --config-dir", "--config-dir", "is refused"),
    ("trainer.epochs=1  --config-dir  nowhere  mesh=single", "--config-dir nowhere is refused", "no such folder"),
    ("--config-name  nope", "--config-name nope is refused"),
    ("trainer.epochs=1  -m  resume=latest", "resume=latest is refused", "drop -m"),
    # Checkpoints that are not there.
    ("resume=latest  trainer.checkpoint.folder=nowhere", "resume=latest is refused", "start one: python -m runner"),
    # Sweeps: nothing is opened for them.
    ("-m  trainer.seed=1,2  hydra.launcher.max_parallel=0", "hydra.launcher.max_parallel=0 is refused", "at least 1"),
    ("-m  trainer.seed=1,2  hydra.launcher.timeout=0", "hydra.launcher.timeout=0 is refused", "seconds above 0"),
    ("-m  trainer.seed=1,2  +hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs=0 is refused", "max_parallel"),
    ("-m  trainer.seed=interval(1,2)", "trainer.seed=interval(1,2) is refused", "hydra/sweeper=optuna"),
    ("experiment=search_optimizer  hydra/sweeper=grid", "is refused: hydra/sweeper=grid takes params", "optuna"),
    ("-m  hydra/sweeper=optuna  trainer.seed=1", "hydra/sweeper=optuna is refused", "nothing to search over"),
]
