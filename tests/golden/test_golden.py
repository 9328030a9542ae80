"""What a run computes stays what the golden records say."""

import pytest

from tests.golden.runs import GOLDEN, Golden, differences, measure, recorded

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_a_run_computes_what_its_golden_record_says(golden: Golden) -> None:
    assert differences(recorded(golden), measure(golden)) == []
