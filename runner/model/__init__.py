"""Model builders, one file per family, each called with the arguments of `.builder.data_arguments`."""
