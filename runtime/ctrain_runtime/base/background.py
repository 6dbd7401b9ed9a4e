"""A call beside the caller's work: the caller waits for it only where the result is needed."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Callable, TypeVar

NAME = "ctrain-background"  # of the threads

Result = TypeVar("Result")


def start(function: Callable[[], Result]) -> Future[Result]:
    """Call a function in another thread, for which the end of this process does not wait: whoever mistypes a name
    learns it at once, even where a scheduler is slow to answer. Its error is raised by the future's result()."""
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # raised where the result is needed
            future.set_exception(error)

    threading.Thread(target=call, name=NAME, daemon=True).start()
    return future
