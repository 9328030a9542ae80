"""The verify command: `python -m runner.verify mesh=batch8` compares the mesh with one device.

Exit codes: 0 if verified, 1 if not, 2 if the config is invalid.
"""

from runner.cli import entry

if __name__ == "__main__":
    entry.main("runner.verify.record")
