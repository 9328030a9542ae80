"""Training on a DTensor mesh."""
