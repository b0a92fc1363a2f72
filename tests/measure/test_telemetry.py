import math
import mmap
import os
import time

import pytest

from inferometer.measure.telemetry import RaplCounter, Sampler, page_faults


def burn(duration_s: float) -> tuple[int, int]:
    start_ns = time.perf_counter_ns()
    while time.perf_counter_ns() - start_ns < duration_s * 1e9:
        pass
    return start_ns, time.perf_counter_ns()


def test_a_busy_process_uses_a_core():
    with Sampler(os.getpid, n_cores=1, device="cpu") as sampler:
        time.sleep(0.2)
        start_ns, end_ns = burn(0.6)
        cpu_s = time.process_time()
        busy = sampler.between(start_ns, end_ns)
        quiet_start_ns = time.perf_counter_ns()
        time.sleep(0.4)
        quiet = sampler.between(quiet_start_ns, time.perf_counter_ns())
    assert cpu_s > 0
    # A neighbour may have taken some of the core: only the direction is sure.
    assert busy.cpu_fraction > quiet.cpu_fraction + 0.2
    assert quiet.cpu_fraction < 0.3
    assert math.isnan(busy.device_fraction)


def test_memory_that_is_touched_first_is_a_minor_fault_a_page():
    n_bytes, page_bytes = 64 * 2**20, 4096
    with Sampler(os.getpid, n_cores=1, device="cpu") as sampler:
        time.sleep(0.2)
        start_ns = time.perf_counter_ns()
        time.sleep(0.15)
        quiet = sampler.between(start_ns, time.perf_counter_ns())
        start_ns = time.perf_counter_ns()
        time.sleep(0.15)  # until a sample lies between this end and the first page
        with mmap.mmap(-1, n_bytes) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            for at in range(0, n_bytes, page_bytes):
                memory[at] = 1
            time.sleep(0.15)  # until they were read once more
            touched = sampler.between(start_ns, time.perf_counter_ns())
    assert touched.minor_faults >= 0.7 * n_bytes / page_bytes  # ends lie between two samples
    assert quiet.minor_faults < 0.2 * n_bytes / page_bytes
    assert touched.major_faults >= 0


def test_page_faults_of_nobody_are_absent():
    assert page_faults(2**22 + 1) is None
    minor, major = page_faults(os.getpid())
    assert minor > 0 <= major


def test_without_a_process_all_is_absent():
    with Sampler(lambda: None, n_cores=1, device="cpu") as sampler:
        start_ns, end_ns = burn(0.1)
        absent = sampler.between(start_ns, end_ns)
        assert math.isnan(absent.cpu_fraction)
        assert math.isnan(absent.minor_faults)


def test_what_was_not_sampled_is_absent():
    with Sampler(os.getpid, n_cores=1, device="cpu") as sampler:
        time.sleep(0.2)
        assert math.isnan(sampler.between(0, 1).cpu_fraction)


def package(root, name, energy_uj, wraps_at_uj):
    folder = root / name
    folder.mkdir()
    (folder / "energy_uj").write_text(str(energy_uj))
    (folder / "max_energy_range_uj").write_text(str(wraps_at_uj))
    return folder / "energy_uj"


def test_energy_adds_packages_and_unwraps(tmp_path):
    # No powercap on this machine: a folder as the kernel makes it.
    first = package(tmp_path, "intel-rapl:0", 900_000, 1_000_000)
    second = package(tmp_path, "intel-rapl:1", 0, 1_000_000)
    package(tmp_path, "intel-rapl:0:0", 5, 1_000_000)
    counter = RaplCounter(tmp_path)
    assert counter.read_joule() == 0
    first.write_text("100000")
    second.write_text("300000")
    assert counter.read_joule() == pytest.approx(0.5)


def test_no_powercap_is_absent(tmp_path):
    assert RaplCounter(tmp_path).read_joule() is None
