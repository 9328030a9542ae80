"""The command `runner`, also as `python -m runner`: `runner mesh=batch8` trains, `runner plan mesh=batch8` plans."""

from runner.cli.entry import main_of_words as main

if __name__ == "__main__":
    main()
