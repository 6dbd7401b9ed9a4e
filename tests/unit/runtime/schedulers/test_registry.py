from __future__ import annotations

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.errors import SiteError
from ctrain_runtime.schedulers.local.scheduler import Local


def test_the_scheduler_of_a_site() -> None:
    assert isinstance(schedulers.get("local"), Local)
    assert schedulers.get("slurm") is schedulers.get("slurm")


def test_a_scheduler_that_does_not_exist() -> None:
    with pytest.raises(SiteError) as caught:
        schedulers.get("lsf")
    assert str(caught.value) == "unknown scheduler 'lsf'. Available: slurm, pbs, local"
