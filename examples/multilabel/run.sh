#!/bin/sh
# Multi-label classification: docs/tasks.md explains each step.
set -e
cd "$(dirname "$0")"

python make_tags.py
python -m runner dataset=arrays dataset.path=tags.npz task=multilabel task.target=tags mesh=batch8 \
  trainer.epochs=10

python -m runner.verify dataset=arrays dataset.path=tags.npz task=multilabel task.target=tags \
  mesh=batch8
python -m runner resume=latest mesh=batch4_model2 trainer.epochs=12
python -m runner.evaluate run=latest
python -m runner.export run=latest
