#!/bin/sh
# Regression from a table: docs/tasks.md explains each step.
set -e
cd "$(dirname "$0")"

python make_houses.py
python -m runner dataset=arrays dataset.path=houses.csv task=regression task.target=price \
  mesh=batch8 trainer.epochs=20

python -m runner.verify dataset=arrays dataset.path=houses.csv task=regression task.target=price \
  mesh=batch8
python -m runner resume=latest mesh=batch4_model2 trainer.epochs=25
python -m runner.evaluate run=latest
python -m runner.export run=latest
