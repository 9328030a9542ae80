"""The ui command: `runner ui` serves MLflow's page of the project's runs on this machine."""

from runner.cli import entry

if __name__ == "__main__":
    entry.main_without_config("runner.cli.ui")
