"""Model builders, one file a family, called with what their parameters name of the data: see `.builder.given`."""
