#!/bin/sh
# Custom loss and metrics: docs/own_loss.md explains each step.
set -e
cd "$(dirname "$0")"

python make_trips.py
python -m runner dataset=arrays dataset.path=trips.npz task=custom task._target_=my_task.quantile \
  task.maximize=[covered] task.target=minutes mesh=batch8 trainer.epochs=10

python -m runner.verify dataset=arrays dataset.path=trips.npz task=custom \
  task._target_=my_task.quantile task.maximize=[covered] task.target=minutes mesh=batch8
python -m runner resume=latest mesh=batch4_model2 trainer.epochs=12
python -m runner.evaluate run=latest
python -m runner.export run=latest

python -m runner dataset=digits task=custom task._target_=my_contrast.loss task.units=16 \
  dataset.batch_size=32 mesh=batch8
python -m runner.evaluate run=latest "evaluate.split='test[:60]'"
python -m runner.evaluate run=latest "evaluate.split='test[:60]'" mesh=model8
python -m runner.verify dataset=digits task=custom task._target_=my_contrast.loss task.units=16 \
  dataset.batch_size=32 mesh=batch8
