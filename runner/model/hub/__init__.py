"""What `runner.model.keras_hub` is made of: classes of KerasHub, their inputs and heads, presets and fine-tuning."""
