"""SIGINT and SIGTERM as a wish to stop that the loop grants between two steps."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop; its message says how to go on.

    Args:
        message: What to tell the user; of several processes only the main one has something to
            tell.
        number: The signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class StopRequest:
    """While entered, the first SIGINT or SIGTERM is noted; a second one acts at once.

    A handler of the program around it hears of the first one too: it may come when a run has no
    step left to stop at.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
        before = self._before[number]
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)
