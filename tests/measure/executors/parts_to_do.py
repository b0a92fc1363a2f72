"""Work in parts that tests give to executors: it must be importable where it is done."""

import itertools
import os
import signal
import time
from pathlib import Path

import numpy as np

from inferometer.errors import SpecError


def spectrum(seed):
    """Some floating-point work, the quicker the later the part."""
    time.sleep(0.2 / (1 + seed))
    return np.fft.fft(np.random.default_rng(seed).normal(size=256)).sum().tobytes()


def killed_once(part):
    """The worker of one part is killed the first time; says in how many processes the part was begun."""
    seed, folder, is_fatal = part
    begun = len(list(Path(folder).glob(f"{seed}-*")))
    (Path(folder) / f"{seed}-{os.getpid()}").touch()
    if is_fatal and not begun:
        os.kill(os.getpid(), signal.SIGKILL)
    return seed, begun + 1


def always_killed(part):
    if part == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return part


def refused(part):
    """Parts 2 and 5 cannot be done; 5 says so at once."""
    if part == 2:
        time.sleep(0.5)
    if part in {2, 5}:
        raise SpecError(f"part {part}", where="a test", try_="another")
    return part


def asleep(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)


def deaf(folder):
    """Holds the interpreter's lock until the process ends: no thread of it runs."""
    (Path(folder) / str(os.getpid())).touch()
    sum(itertools.repeat(1))


def node_address(place):
    """On which node of a Ray cluster is this done? Its worker stays until another node has a part, too."""
    import ray

    folder, address = Path(place) / "nodes", ray.util.get_node_ip_address()
    folder.mkdir(exist_ok=True)
    (folder / address).touch()
    patience_until_s = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2 and time.monotonic() < patience_until_s:
        time.sleep(0.05)
    return address
