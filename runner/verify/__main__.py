"""The verify command: `python -m runner.verify mesh=batch8` proves the mesh against one device.

It exits with 0 where that is verified, 1 where it is not, 2 where the config was refused.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.verify.record")
