"""Do our probes read memory as fast as a plain C loop does?

Bound: within 10 %; 20 % for numpy, which serves engines without torch.

The C loop (stream.c) and a probe take turns, on one buffer, in one process; each pair gives one
ratio, so that the drift of the machine cancels.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from results_log import log_row, quiet, require_passive_threads, words

from inferometer.measure.ceilings import MIN_PASSES, PROBE_S, NumpyCeilings
from inferometer.measure.engines.protocol import ProbeSettings
from inferometer.measure.engines.torch_ceilings import TorchCeilings
from inferometer.records.types import ProbeKind
from inferometer.stats.quantiles import median_estimate

MIB = 2**20
MARGINS = {"torch": 0.1, "numpy": 0.2}
FOOTPRINTS_BYTES = (64 * MIB, 256 * MIB, 1024 * MIB)


def compiled(folder: Path) -> ctypes.CDLL:
    library = folder / "stream.so"
    source = Path(__file__).with_name("stream.c")
    flags = [
        "-O3",
        "-march=native",
        "-funroll-loops",
        "-mprefer-vector-width=512",
        "-pthread",
        "-shared",
        "-fPIC",
    ]
    subprocess.run(
        [shutil.which("cc") or "cc", *flags, str(source), "-o", str(library)], check=True
    )
    loaded = ctypes.CDLL(str(library))
    loaded.fastest_pass_s.restype = ctypes.c_double
    loaded.fastest_pass_s.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_double,
    ]
    return loaded


def c_loop_per_s(library: ctypes.CDLL, buffer: np.ndarray, n_threads: int) -> float:
    return buffer.nbytes / library.fastest_pass_s(
        None, buffer.ctypes.data, buffer.nbytes, n_threads, MIN_PASSES, PROBE_S
    )


def measured_ratio(library, probe, footprint_bytes, n_threads, n_pairs):
    settings = ProbeSettings(
        kinds=(ProbeKind.READ,),
        footprint_bytes=footprint_bytes,
        matmul_dtype="float32",
        n_threads=n_threads,
    )
    probe.measure(settings)
    # One buffer for both: in a virtual machine two of them can lie in pages of different kinds, and
    # differ by 12 %.
    buffer = probe._source.numpy() if isinstance(probe, TorchCeilings) else probe._words  # noqa: SLF001
    pairs = []
    for i_pair in range(n_pairs + 2):
        if i_pair % 2:
            ours, theirs = (
                probe.measure(settings)[0].value_per_s,
                c_loop_per_s(library, buffer, n_threads),
            )
        else:
            theirs, ours = (
                c_loop_per_s(library, buffer, n_threads),
                probe.measure(settings)[0].value_per_s,
            )
        pairs.append((ours, theirs))
    pairs = pairs[2:]  # the first wake the processors up
    return median_estimate([ours / theirs for ours, theirs in pairs]), median_estimate(
        [theirs / 1e9 for _, theirs in pairs]
    )


def main():
    require_passive_threads()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=25)
    n_pairs = parser.parse_args().pairs
    n_threads = len(os.sched_getaffinity(0))
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        for name, probe in (("torch", TorchCeilings()), ("numpy", NumpyCeilings())):
            for footprint_bytes in FOOTPRINTS_BYTES:
                measured = quiet(
                    lambda: measured_ratio(library, probe, footprint_bytes, n_threads, n_pairs)  # noqa: B023
                )
                if measured is None:
                    print(
                        f"READ with {name}, {footprint_bytes // MIB} MiB: no row, the machine was"
                        " never quiet"
                    )
                    continue
                (ratio, loop), margin = measured, MARGINS[name]
                log_row(
                    f"ceilings, READ with {name}, {footprint_bytes // MIB} MiB, {n_threads}"
                    " threads",
                    f"probe / C loop = {words(ratio)}; C loop {words(loop)} GB/s",
                    f"bound: within {margin:.0%}",
                )
                is_good &= ratio is not None and abs(ratio.value - 1) <= margin
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
