"""The verify command: `python -m runner.verify mesh=batch8` compares the mesh with one device.

Exit codes: 0 verified, 1 not verified or failed, 2 invalid config.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.verify.record")
