"""Custom steps: a user's class computes the update, with several models and several optimizers of Keras."""
