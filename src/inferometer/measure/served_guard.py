"""The process between us and a server under test: it ends the server's whole group when we are gone.

``python -m inferometer.measure.served_guard COMMAND…``: the guard leads the group. SIGTERM is
passed on to the command alone, which then ends its own processes as it would anywhere.
"""

import signal
import subprocess
import sys
from types import FrameType
from typing import Final

from inferometer.measure import child_processes

NOT_FOUND: Final = 127
"""Exit code of a shell for an unknown command."""


def main(words: list[str]) -> int:
    """Run the command until it ends; its exit code, negative for a signal's number."""
    child_processes.hold(is_group=True)
    try:
        server = subprocess.Popen(words)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        return NOT_FOUND

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        server.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) % 256)
