"""The generated reference is up to date, and no picture of docs/ names another host."""

import re
from dataclasses import fields

from runner.config import schema
from tests.docs import reference


def test_the_reference_is_that_of_conf_and_the_code() -> None:
    assert reference.PAGE.read_text() == reference.page(), "write it again: python -m tests.docs.reference"


def test_every_key_that_the_config_has_is_in_it_and_explained() -> None:
    explained = set(re.findall(r"^- `([\w.]+)`: .*default .*\\\n  \S", reference.page(), flags=re.M))
    kinds = {spec.name: spec.default_factory for spec in fields(schema.RunConfig)}
    for group in kinds:
        if (reference.CONF / group).is_dir() and group != "model":
            for key, _, _ in reference.described(kinds[group]):  # type: ignore[arg-type]
                assert f"{group}.{key}" in explained or key in ("name", "target", "options"), f"{group}.{key}"


def test_every_option_has_a_line() -> None:
    text = reference.page()
    for path in reference.CONF.rglob("[!_]*.yaml"):
        is_only = len(list(path.parent.glob("*.yaml"))) == 1
        assert path.name == "config.yaml" or is_only or f"{path.stem}`" in text, path


def test_no_picture_names_another_host() -> None:
    files = (reference.PAGE.parent / "images").rglob("*.svg")
    assert [file.name for file in files if re.search(r"url\(.?https?:", file.read_text())] == []
