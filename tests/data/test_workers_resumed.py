"""A run killed in the middle of an epoch goes on with other workers, and ends with the same parameters bit for bit."""

from pathlib import Path

import pytest

from tests.data import resumed
from tests.data.pictures import folder

STEPS = "dataset.augment=[{name: random_resized_crop, size: [12, 12]}, {name: flip}, {name: color, brightness: 0.2}]"


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_killed_inside_an_epoch_and_resumed_with_other_workers_has_the_same_parameters(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos", 50)
    options = ["mesh=single", "dataset=image_folder", f"dataset.path={photos}", "dataset.test=train", STEPS]
    resumed.compare(tmp_path, 6, 8, options, [[f"dataset.workers={count}"] for count in (1, 2, 3)])
