import pytest

from inferometer.measure.nvml import NvmlDevices


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
