import os
import time
from types import SimpleNamespace

import pytest

from inferometer.measure.host import NvmlDevices
from inferometer.measure.telemetry import Sampler


class NVMLError(Exception):
    pass


class Library:
    """What a driver with two devices answers, one of which has no energy counter: no such machine is at hand."""

    NVMLError = NVMLError
    nvmlClocksEventReasonSwPowerCap = 4  # noqa: N815

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return b"A device %d" % handle

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        raise NVMLError

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return 100_000 + handle * 1000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        if handle == 1:
            raise NVMLError
        return 5_000

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):  # noqa: N802
        return 4 if handle == 1 else 0

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def nvmlDeviceGetClockInfo(self, handle, clock):  # noqa: ARG002, N802
        return 1980 if clock == 1 else 2619

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: ARG002, N802
        return SimpleNamespace(used=3 * 2**30, total=80 * 2**30)


def test_no_driver_is_absent(monkeypatch):
    monkeypatch.setattr(
        "importlib.import_module", lambda name: (_ for _ in ()).throw(ImportError(name))
    )
    assert NvmlDevices.open(1) is None


def test_devices_add_up_and_what_one_lacks_is_absent(monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda _: Library())
    devices = NvmlDevices.open(2)
    assert devices is not None
    sample = devices.sample()
    assert sample.power_watt == pytest.approx(201)
    assert sample.energy_joule is None
    assert sample.busy_fraction is None
    assert sample.throttle_reasons == ("power cap",)
    assert devices.facts().name == "A device 0"
    assert devices.facts().driver is None


def test_counters_are_of_each_device_and_those_that_it_lacks_are_left_out(monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda _: Library())
    devices = NvmlDevices.open(2)
    assert devices is not None
    found = {(one.name, one.device): one.value for one in devices.counters()}
    assert found == {
        ("DCGM_FI_DEV_POWER_USAGE", 0): 100.0,
        ("DCGM_FI_DEV_POWER_USAGE", 1): 101.0,
        **{("DCGM_FI_DEV_SM_CLOCK", device): 1980.0 for device in (0, 1)},
        **{("DCGM_FI_DEV_MEM_CLOCK", device): 2619.0 for device in (0, 1)},
        **{("DCGM_FI_DEV_FB_USED", device): 3072.0 for device in (0, 1)},
    }, "no utilisation: this driver has no such counter"


def test_they_are_sampled_over_time_and_taken_once(monkeypatch):
    monkeypatch.setattr("inferometer.measure.host.importlib.import_module", lambda _: Library())
    with Sampler(os.getpid, n_cores=1, device="cuda", n_devices=2) as sampler:
        monkeypatch.undo()
        start_ns = time.perf_counter_ns()
        time.sleep(0.5)
        taken = sampler.taken_counters()
        assert sampler.taken_counters() == [] or sampler.taken_counters()[0][0] > taken[-1][0]
    at_ns = sorted({at_ns for at_ns, _ in taken})
    assert len(at_ns) > 3
    assert at_ns[0] > start_ns - 1_000_000_000
    assert len(taken) == 8 * len(at_ns)
