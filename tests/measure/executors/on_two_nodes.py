"""Run in the Python that has Ray, as ``python on_two_nodes.py ADDRESS FOLDER``.

Says as JSON what ``test_on_ray.py`` looks at.
"""

import json
import sys
import time
from pathlib import Path

import parts_to_do

from inferometer.errors import InferometerError
from inferometer.measure.executors.local import Inline
from inferometer.measure.executors.ray_cluster import OnRay, joined


def main():
    address, folder = sys.argv[1], Path(sys.argv[2])
    told = []
    with joined(address) as cluster:
        there = OnRay(cluster, lambda *counts: told.append(counts))
        answers = there.map(parts_to_do.spectrum, range(8))
        said = {
            "hosts": [host.address for host in cluster.hosts],
            "is_same": answers == Inline().map(parts_to_do.spectrum, range(8)),
            "told": told,
            "killed": there.map(
                parts_to_do.killed_once, [(seed, str(folder), seed == 1) for seed in range(4)]
            ),
            "refused": why(lambda: there.map(parts_to_do.refused, range(6))),
            "always_killed": why(lambda: there.map(parts_to_do.always_killed, range(3))),
            "nodes": sorted(set(there.map(parts_to_do.node_address, [str(folder)] * 8))),
        }
    sys.stdout.write(f"SAID {json.dumps(said)}\n")


def why(call):
    begun_s = time.monotonic()
    try:
        call()
    except InferometerError as error:
        return [type(error).__name__, error.what, error.where, time.monotonic() - begun_s]
    return None


if __name__ == "__main__":
    main()
