"""Links to other hosts: their form and their hosts, as far as a machine without a network can tell."""

from pathlib import Path

import pytest

from tests.docs import links


@pytest.mark.parametrize("path", links.texts(), ids=lambda path: path.stem)
def test_links_to_other_hosts_are_well_formed(path: Path) -> None:
    found = {address: links.problem(address, name) for name, address in links.external(path.read_text())}
    assert {address: wrong for address, wrong in found.items() if wrong} == {}


def test_each_known_host_is_linked_to() -> None:
    addresses = [address for path in links.texts() for _, address in links.external(path.read_text())]
    assert {address.split("/")[2] for address in addresses} == links.HOSTS


@pytest.mark.parametrize(
    ("address", "name", "wrong"),
    [
        ("http://keras.io/guides/", "", "must begin with https://"),
        ("https://keras.oi/guides/", "", "host keras.oi is not in HOSTS of tests/docs/links.py"),
        ("https://keras.io/guides/?utm=1", "", "must be a plain path, without a query or other signs"),
        ("https://keras.io/guides/,", "", "must be a plain path, without a query or other signs"),
        (
            "https://github.com/jax-ml/jax/issue/12868",
            "",
            "must be github.com/owner/name, or its /issues/<number> or /pull/<number>",
        ),
        ("https://github.com/jax-ml/jax/issues/12869", "jax 12868", "the link text is 'jax 12868'"),
        ("https://github.com/keras-team/keras/issues/252", "tf-keras 252", "the link text is 'tf-keras 252'"),
    ],
)
def test_an_ill_formed_address_is_found(address: str, name: str, wrong: str) -> None:
    assert links.problem(address, name) == wrong
