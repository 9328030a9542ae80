"""A process of several that computes nothing: `python -m tests.processes.worker JSON`.

JSON holds `cluster` (keys of the group), `agrees`, and `act`: the name of what it does once all have come. What it
says is a line of JSON each, with its number and process id.
"""

from runner.cli import entry


def body() -> int:
    """Comes to the others, or starts them; then acts."""
    import json
    import os
    import sys

    from runner.cluster import launch, lifecycle, membership, place
    from runner.cluster.team import ProcessError, current
    from runner.config.schema import ClusterConfig
    from runner.errors import ConfigError
    from tests.processes import acts

    asked = json.loads(sys.argv[1])
    config = ClusterConfig(**asked["cluster"])
    membership.join(os.environ)  # the launcher's end is this process's

    def failed(error: Exception, code: int) -> int:
        if current().failed(str(error), own=code == 2):
            print(f"error: {error}", file=sys.stderr, flush=True)
        return code

    try:
        if place.has_launcher(config) and place.from_launcher() is None:
            return launch.run(sys.orig_argv[1:], int(config.processes or 1), {})
        lifecycle.join(config, asked["agrees"])
        with lifecycle.explained():
            acts.ACTS[asked["act"]]()
    except ProcessError as error:
        return failed(error, error.code)
    except ConfigError as error:
        return failed(error, 2)
    except (OSError, RuntimeError) as error:
        return failed(error, 1)
    return 0


if __name__ == "__main__":
    entry.call("tests.processes.worker", "body")
