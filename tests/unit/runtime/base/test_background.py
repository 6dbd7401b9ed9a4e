from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from ctrain_runtime.base import background
from ctrain_runtime.errors import SchedulerError


def test_a_call_goes_on_beside_the_caller() -> None:
    event = threading.Event()
    future = background.start(lambda: event.wait(60))
    assert not future.done()
    event.set()
    assert future.result(60)


def test_its_error_is_raised_where_the_result_is_needed() -> None:
    def fail() -> None:
        raise SchedulerError("Slurm does not answer")

    with pytest.raises(SchedulerError, match=r"^Slurm does not answer"):
        background.start(fail).result(60)


def test_the_end_of_the_process_does_not_wait_for_it() -> None:
    program = "import threading; from ctrain_runtime.base import background; background.start(threading.Event().wait)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)
