"""What did a command cost, with every process that it or its children started?

``python process_tree.py RESULT COMMAND …``

Orphans come home to this process (a Linux subreaper) and are waited for, so none escapes the count.
Writes JSON to RESULT: CPU seconds, seconds until the command itself ended, its exit code.
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of <sys/prctl.h>."""
_LINGER_S = 10.0


def main():
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    signal.signal(signal.SIGALRM, end_those_who_linger)
    began_s = time.monotonic()
    command = subprocess.Popen(sys.argv[2:])
    code, wall_s = None, 0.0
    with suppress(ChildProcessError):
        while True:
            pid, status = os.wait()
            if pid == command.pid:
                code, wall_s = os.waitstatus_to_exitcode(status), time.monotonic() - began_s
                signal.setitimer(signal.ITIMER_REAL, _LINGER_S)
    signal.setitimer(signal.ITIMER_REAL, 0)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(sys.argv[1]).write_text(
        json.dumps({"cpu_s": spent.ru_utime + spent.ru_stime, "wall_s": wall_s, "code": code})
    )


def end_those_who_linger(*_):
    """Whoever outlives the command is ended: this process is the only parent they have left."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            child.kill()


if __name__ == "__main__":
    main()
