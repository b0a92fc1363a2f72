"""What happens when somebody ends the command: Ctrl-C, ``kill``, ``timeout``, a terminal that hangs up?

SIGTERM and SIGHUP end a verb in the same order as Ctrl-C (SIGINT): what was measured is stored and
summarised, and the exit code is 128 and the signal's number, as shells have it.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Which signal ended the command?"""

    def __init__(self) -> None:
        self._signal_number: int = signal.SIGINT

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
        return 128 + self._signal_number

    def take(self, signal_number: int, _: FrameType | None) -> None:
        """Python calls this for the signal, in the main thread."""
        self._signal_number = signal_number
        raise KeyboardInterrupt


@contextmanager
def orderly_ends() -> Generator[Ending]:
    """Within the ``with`` SIGTERM and SIGHUP raise KeyboardInterrupt, unless somebody (``nohup``) has them ignored."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, ending.take)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
