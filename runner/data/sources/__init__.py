"""Where data comes from: one module, or package, a kind of source; each has `load`, which returns a `Whole`."""
