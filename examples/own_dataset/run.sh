#!/bin/sh
# Custom dataset: docs/own_dataset.md explains each step.
set -e
cd "$(dirname "$0")"

python -m runner engine=jax dataset=custom dataset._target_=pairs.load model=custom \
  model._target_=two_inputs.build task.classes=4 mesh=batch8 trainer.epochs=4

python -m runner.verify engine=jax dataset=custom dataset._target_=pairs.load model=custom \
  model._target_=two_inputs.build task.classes=4 mesh=batch8
python -m runner resume=latest mesh=batch4_model2 trainer.epochs=5
python -m runner.evaluate run=latest
python -m runner.export run=latest
