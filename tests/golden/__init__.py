"""Golden records: what about sixteen configs compute, so that a change of the code that changes a number is seen."""
