"""What did the machine do while a repetition ran: processors, accelerator, energy?

A thread of its own samples counters every few hundredths of a second (some 0.1 % of a core), and
repetitions are cut out of them afterwards. What the machine does not tell stays absent.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import psutil

from inferometer.measure.host import DeviceCounter, NvmlDevices
from inferometer.records.repetitions import TELEMETRY_INTERVAL_S

INTERVAL_S: Final = TELEMETRY_INTERVAL_S
_FAMILY_EVERY: Final = 20
"""Samples between two looks for new child processes: that search reads all of /proc."""
_PATIENCE_SAMPLES: Final = 4
"""Intervals to wait for the sample after a repetition: an engine that has died will not be
sampled again."""
_PROC: Final = Path("/proc")
_POWERCAP: Final = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What was sampled during one repetition; NaN is absent."""

    cpu_fraction: float = float("nan")
    device_fraction: float = float("nan")
    energy_joule: float = float("nan")
    power_watt: float = float("nan")
    minor_faults: float = float("nan")
    major_faults: float = float("nan")


class _Used(NamedTuple):
    """Resources that the engine's processes have used since their start."""

    cpu_s: float
    minor_faults: int | None
    major_faults: int | None


@dataclass(slots=True)
class _Series:
    """Samples of one counter: when, and how much since the beginning of time."""

    at_ns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at_ns: int, value: float | None) -> None:
        if value is not None:
            self.at_ns.append(at_ns)
            self.values.append(value)

    def grown(self, start_ns: int, end_ns: int) -> float:
        """Growth between two instants; NaN where samples do not cover them."""
        if len(self.at_ns) < 2 or self.at_ns[0] > start_ns or self.at_ns[-1] < end_ns:
            return float("nan")
        before, after = np.interp([start_ns, end_ns], self.at_ns, self.values)
        return float(after - before)

    def mean(self, start_ns: int, end_ns: int) -> float:
        inside = [
            value
            for at_ns, value in zip(self.at_ns, self.values, strict=True)
            if start_ns <= at_ns <= end_ns
        ]
        return float(np.mean(inside)) if inside else float("nan")


class Sampler:
    """Samples an engine's processes and the machine while it is open as a context."""

    def __init__(
        self, engine_pid: Callable[[], int | None], *, n_cores: int, device: str, n_devices: int = 1
    ) -> None:
        self._engine_pid = engine_pid
        self._n_cores = n_cores
        self._nvml = NvmlDevices.open(n_devices) if device == "cuda" else None
        self._family: list[psutil.Process] = []
        self._cpu_s, self._busy, self._energy_joule, self._power_watt = (
            _Series(),
            _Series(),
            _Series(),
            _Series(),
        )
        self._minor_faults, self._major_faults = _Series(), _Series()
        self._throttled: set[str] = set()
        self._counters: list[tuple[int, DeviceCounter]] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._rapl = RaplCounter()

    def __enter__(self) -> Self:
        """Begin sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End sampling."""
        self._over.set()
        self._thread.join()

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """Reasons for which the accelerator ran below its clocks, at any time so far."""
        return tuple(sorted(self._throttled))

    def between(self, start_ns: int, end_ns: int) -> Telemetry:
        """Telemetry between these instants; waits for the sample that follows the second."""
        for _ in range(_PATIENCE_SAMPLES):
            if not self._cpu_s.at_ns or self._cpu_s.at_ns[-1] >= end_ns:
                break
            self._over.wait(INTERVAL_S)
        wall_s = (end_ns - start_ns) / 1e9
        with self._lock:
            energy_joule = self._energy_joule.grown(start_ns, end_ns)
            power_watt = self._power_watt.mean(start_ns, end_ns)
            return Telemetry(
                cpu_fraction=self._cpu_s.grown(start_ns, end_ns) / (wall_s * self._n_cores),
                device_fraction=self._busy.mean(start_ns, end_ns),
                energy_joule=energy_joule,
                power_watt=energy_joule / wall_s if np.isnan(power_watt) else power_watt,
                minor_faults=self._minor_faults.grown(start_ns, end_ns),
                major_faults=self._major_faults.grown(start_ns, end_ns),
            )

    def taken_counters(self) -> list[tuple[int, DeviceCounter]]:
        """Device counters since the last call, each with its reading of ``time.perf_counter_ns``."""
        with self._lock:
            taken, self._counters = self._counters, []
        return taken

    def forget(self) -> None:
        """Drop the samples so far: their repetitions are written."""
        with self._lock:
            faults = (self._minor_faults, self._major_faults)
            for series in (self._cpu_s, self._busy, self._energy_joule, self._power_watt, *faults):
                del series.at_ns[:-2], series.values[:-2]

    def _watch(self) -> None:
        n_samples = 0
        while not self._over.wait(INTERVAL_S):
            self._sample(looks_for_children=n_samples % _FAMILY_EVERY == 0)
            n_samples += 1

    def _sample(self, *, looks_for_children: bool) -> None:
        used = self._family_used(looks_for_children=looks_for_children)
        at_ns = time.perf_counter_ns()
        device = None if self._nvml is None else self._nvml.sample()
        counters = () if self._nvml is None else self._nvml.counters()
        with self._lock:
            if used is not None:
                self._cpu_s.add(at_ns, used.cpu_s)
                self._minor_faults.add(at_ns, used.minor_faults)
                self._major_faults.add(at_ns, used.major_faults)
            if device is None:
                self._energy_joule.add(at_ns, self._rapl.read_joule())
                return
            self._counters += [(at_ns, counter) for counter in counters]
            self._busy.add(at_ns, device.busy_fraction)
            self._energy_joule.add(at_ns, device.energy_joule)
            self._power_watt.add(at_ns, device.power_watt)
            self._throttled |= set(device.throttle_reasons)

    def _family_used(self, *, looks_for_children: bool) -> _Used | None:
        pid = self._engine_pid()
        if pid is None:
            return None
        try:
            if looks_for_children or not self._family or self._family[0].pid != pid:
                leader = psutil.Process(pid)
                self._family = [leader, *leader.children(recursive=True)]
            times = [process.cpu_times() for process in self._family]
            faults = [page_faults(process.pid) for process in self._family]
        except psutil.Error:
            self._family = []
            return None
        known = [one for one in faults if one is not None]
        is_whole = len(known) == len(faults)
        return _Used(
            cpu_s=float(sum(one.user + one.system for one in times)),
            minor_faults=sum(one[0] for one in known) if is_whole else None,
            major_faults=sum(one[1] for one in known) if is_whole else None,
        )


def page_faults(pid: int) -> tuple[int, int] | None:
    """Page faults of a process since its start, minor and major; None where unknown.

    Source: proc(5), ``/proc/PID/stat``, fields 10 (minflt) and 12 (majflt).
    """
    try:
        # The name in parentheses may hold spaces.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[7]), int(fields[9])


class RaplCounter:
    """CPU package energy since the first reading (Linux powercap); absent if not readable."""

    def __init__(self, root: Path = _POWERCAP) -> None:
        # intel-rapl:0 is a package, intel-rapl:0:0 a part of it that would count twice.
        self._packages = [
            path for path in sorted(root.glob("intel-rapl:*")) if path.name.count(":") == 1
        ]
        self._last_uj: dict[Path, int] = {}
        self._total_uj = 0

    def read_joule(self) -> float | None:
        """Joules so far, wrap-arounds taken out."""
        try:
            for package in self._packages:
                now_uj = int((package / "energy_uj").read_text())
                grown_uj = now_uj - self._last_uj.get(package, now_uj)
                if grown_uj < 0:
                    grown_uj += int((package / "max_energy_range_uj").read_text())
                self._total_uj += grown_uj
                self._last_uj[package] = now_uj
        except OSError:
            return None
        return self._total_uj / 1e6 if self._packages else None
