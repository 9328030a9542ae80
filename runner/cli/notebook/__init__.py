"""The runner from Python, as in a notebook: `runner.compose`, `runner.plan`, `runner.train`, `runner.open_run`."""
