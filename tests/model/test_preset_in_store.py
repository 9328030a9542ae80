"""A preset in an object store: checked and opened from a copy of its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from runner.errors import ConfigError
from runner.host.stores import client, mirror
from runner.host.stores.urls import ObjectPath
from runner.model.hub import presets

CONFIG = {"module": "keras_hub", "class_name": "GPT2Backbone", "config": {"num_layers": 2}}


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mirror.local.cache_clear()
    # A user's config is rejected there, because the memory of one process holds nothing for the next.
    monkeypatch.setattr(presets, "folder_problem", lambda _: None)
    root = ObjectPath("memory://test-preset-in-store", tmp_path.name)
    client.write(root / presets.CONFIG, json.dumps(CONFIG).encode())
    client.write(root / presets.WEIGHTS, b"weights")
    return root


def test_a_preset_is_opened_from_a_copy_of_its_folder(stored: ObjectPath) -> None:
    presets.check(str(stored))
    preset = presets.opened(str(stored))
    assert preset.name == "GPT2Backbone"
    assert preset.options == {"num_layers": 2}
    assert preset.folder == mirror.local(str(stored))
    assert (preset.folder / presets.WEIGHTS).read_bytes() == b"weights"


def test_a_preset_in_a_store_is_checked_as_a_local_one_is(stored: ObjectPath) -> None:
    client.write(stored / presets.CONFIG, json.dumps(CONFIG | {"module": "evil"}).encode())
    with pytest.raises(ConfigError, match=r"model\.preset=memory://.*: its config names module evil"):
        presets.check(str(stored))


def test_a_folder_that_the_store_does_not_have_is_an_error_of_the_key(stored: ObjectPath) -> None:
    with pytest.raises(ConfigError, match=r"model\.preset=memory://.*: can't be read"):
        presets.check(str(stored.parent / "another"))
