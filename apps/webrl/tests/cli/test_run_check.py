"""`webrl doctor --run`: every part of a run works once, in the small."""

from __future__ import annotations

import pytest
from webrl.run_check import check_run


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.browser
def test_every_part_of_a_run_does_its_work_once() -> None:
    checks = list(check_run())
    assert [check.name for check in checks] == ["policy", "server", "generation", "ray", "page"]
    assert [check.detail for check in checks if not check.is_ok] == []
    assert all(check.detail.endswith(" s)") for check in checks)
