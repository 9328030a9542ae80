"""Checkpoints: saved in the background, verified when read, independent of mesh, layout and engine.

Format:

- `manifest`: the schema of `checkpoint.json`.
- `files`: careful reading and durable writing of small files.
- `tensors`: streaming writer of safetensors files.
- `reading`: a verified checkpoint as a mapping of arrays.

Saving:

- `storage`: the folder of one checkpoint, on a disk or in a store.
- `typed`: JSON as dataclasses.
- `index`: the checkpoints of one run, the history that they belong to, and the best one.
- `saver`: when the training loop saves, and the writer thread.

Runs:

- `runs`: `run.json` and the search for a run by its id.
- `arguments`, `recorded`: `resume=`, `branch=` and `run=` on the command line.
- `resume`: the checks before a run continues from a checkpoint.
- `recovery`: what connects a resumed run with its metrics and its folder.
"""
