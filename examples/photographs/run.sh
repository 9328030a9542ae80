#!/bin/sh
# Image classification with augmentation: docs/pipeline.md explains each step.
set -e
cd "$(dirname "$0")"

python make_photos.py
python -m runner dataset=image_folder dataset.path=photos dataset.image_size=[64,64] \
  dataset.batch_size=32 dataset.holdout=0.2 \
  'dataset.augment=[{name: random_resized_crop, size: [64, 64]}, {name: flip}]' dataset.workers=2 \
  model=convnet mesh=batch8 trainer.epochs=5

python -m runner.verify dataset=image_folder dataset.path=photos dataset.image_size=[64,64] \
  dataset.batch_size=32 dataset.holdout=0.2 \
  'dataset.augment=[{name: random_resized_crop, size: [64, 64]}, {name: flip}]' dataset.workers=2 \
  model=convnet mesh=batch8 verify.steps=5
python -m runner resume=latest mesh=batch4_model2 trainer.epochs=6
python -m runner.evaluate run=latest
python -m runner.export run=latest
