"""What does NVIDIA's management library say about the accelerators?"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self

_THROTTLE: Final = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "temperature",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "temperature (hardware)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
}


_BYTES_PER_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """All devices used, now: utilisation and power as gauges, energy as a counter.

    None is absent.
    """

    busy_fraction: float | None
    energy_joule: float | None
    power_watt: float | None
    memory_bytes: int | None
    throttle_reasons: tuple[str, ...]


class DeviceCounter(NamedTuple):
    """One counter of one device, now: under dcgm-exporter's name, in its unit."""

    name: str
    device: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Facts about the first accelerator."""

    name: str
    driver: str | None
    memory_bytes: int | None


class NvmlDevices:
    """The first devices of this machine, as far as their driver answers."""

    def __init__(self, nvml: Any, handles: tuple[Any, ...]) -> None:  # noqa: ANN401 - the library has no types
        self._nvml = nvml
        self._handles = handles

    @classmethod
    def open(cls, n_devices: int) -> Self | None:
        """The first ``n_devices``; None without library, driver or device."""
        try:
            # Late: the library is an extra that only machines with such a device need.
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
            n_present = min(n_devices, nvml.nvmlDeviceGetCount())
            handles = tuple(nvml.nvmlDeviceGetHandleByIndex(index) for index in range(n_present))
        except nvml.NVMLError:
            return None
        return cls(nvml, handles) if handles else None

    def facts(self) -> DeviceFacts:
        """Facts about the accelerator."""
        nvml, first = self._nvml, self._handles[0]
        name = self._ask(lambda: nvml.nvmlDeviceGetName(first))
        driver = self._ask(nvml.nvmlSystemGetDriverVersion)
        memory_bytes = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(first).total)
        return DeviceFacts(
            name=_text(name) or "unknown", driver=_text(driver), memory_bytes=memory_bytes
        )

    def other_processes(self) -> int | None:
        """The number of processes that compute on the devices."""
        return self._whole(
            self._sum(lambda handle: len(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
        )

    def sample(self) -> DeviceSample:
        """Current state of the devices."""
        nvml = self._nvml
        reasons = {reason for handle in self._handles for reason in self._reasons(handle)}
        return DeviceSample(
            busy_fraction=self._mean(
                lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            ),
            energy_joule=self._sum(
                lambda handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
            ),
            power_watt=self._sum(lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            memory_bytes=self._whole(
                self._sum(lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used)
            ),
            throttle_reasons=tuple(sorted(reasons)),
        )

    def counters(self) -> tuple[DeviceCounter, ...]:
        """Power, clocks, utilisation and memory of each device, as far as reported."""
        nvml = self._nvml
        asked: dict[str, Callable[[Any], float]] = {
            "DCGM_FI_DEV_POWER_USAGE": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "DCGM_FI_DEV_SM_CLOCK": lambda handle: nvml.nvmlDeviceGetClockInfo(
                handle, nvml.NVML_CLOCK_SM
            ),
            "DCGM_FI_DEV_MEM_CLOCK": lambda handle: nvml.nvmlDeviceGetClockInfo(
                handle, nvml.NVML_CLOCK_MEM
            ),
            "DCGM_FI_DEV_GPU_UTIL": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "DCGM_FI_DEV_FB_USED": lambda handle: (
                nvml.nvmlDeviceGetMemoryInfo(handle).used / _BYTES_PER_MIB
            ),
        }
        return tuple(
            DeviceCounter(name, device, float(value))
            for device, handle in enumerate(self._handles)
            for name, question in asked.items()
            if (value := self._ask(partial(question, handle))) is not None
        )

    def _reasons(self, handle: object) -> list[str]:
        mask = self._ask(lambda: self._nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return (
            []
            if mask is None
            else [word for name, word in _THROTTLE.items() if mask & getattr(self._nvml, name, 0)]
        )

    def _ask(self, question: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the driver answers
        try:
            return question()
        except (
            self._nvml.NVMLError,
            AttributeError,
        ):  # not supported by this device, or by this version of the library
            return None

    def _answers(self, question: Callable[[Any], float]) -> list[float] | None:
        answers = [self._ask(partial(question, handle)) for handle in self._handles]
        return None if any(answer is None for answer in answers) else answers

    def _sum(self, question: Callable[[Any], float]) -> float | None:
        answers = self._answers(question)
        return None if answers is None else sum(answers)

    def _mean(self, question: Callable[[Any], float]) -> float | None:
        answers = self._answers(question)
        return None if answers is None else sum(answers) / len(answers)

    @staticmethod
    def _whole(value: float | None) -> int | None:
        return None if value is None else int(value)


def _text(answer: object) -> str | None:
    if isinstance(answer, bytes):
        return answer.decode()
    return None if answer is None else str(answer)
