"""Parts of `runner.model.keras_hub`: KerasHub's classes, their inputs and heads, presets and fine-tuning."""
