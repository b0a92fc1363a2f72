"""On which machine do we measure, and what about it would make numbers bad?

Whether two runs were on the same machine is known by a hash of its name.
"""

import hashlib
import importlib
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import psutil

from inferometer import suggestions
from inferometer.inputs.types import Caution
from inferometer.records import pitfalls
from inferometer.records.types import HostFacts
from inferometer.units import format_bytes, format_fraction

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


_CPU: Final = Path("/sys/devices/system/cpu")
_NODES: Final = Path("/sys/devices/system/node")
_BINDING: Final = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND")
_ALLOWED_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "HF_HUB_OFFLINE",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
)
_LOOK_S: Final = 0.5
"""Time for which other processes are watched."""
BUSY_FRACTION: Final = 0.05
"""Share of one core below which another process is not mentioned."""
MIN_FREE_FRACTION: Final = 0.1


def hostname_hash() -> str:
    """Hash of this machine's host name."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]


def host_facts(*, n_threads: int | None, uses_device: bool) -> HostFacts:
    """Facts about this machine; None for unknown ones."""
    nvml = NvmlDevices.open(1) if uses_device else None
    device = None if nvml is None else nvml.facts()
    return HostFacts(
        hostname_hash=hostname_hash(),
        os=_os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        cpu_model=_cpu_model(),
        n_cores=len(os.sched_getaffinity(0)),
        n_threads_used=n_threads,
        memory_bytes=psutil.virtual_memory().total,
        cpu_governor=_read(_CPU / "cpu0" / "cpufreq" / "scaling_governor"),
        accelerator=None if device is None else device.name,
        accelerator_driver=None if device is None else device.driver,
        accelerator_memory_bytes=None if device is None else device.memory_bytes,
        environment=tuple(
            (name, os.environ[name]) for name in _ALLOWED_VARIABLES if name in os.environ
        ),
    )


def examine_machine() -> tuple[Caution, ...]:
    """Cautions on what would distort measurements here, with remedies; takes half a second."""
    busy, stolen_fraction = _watch_others()
    looks = (_load, _swap, _free_memory, _quota, _hyperthreads, _clock_source, _wait_policy)
    found = (_governor(), *busy, _stolen(stolen_fraction), *(look() for look in looks), *_device())
    return tuple(one for one in found if one is not None)


def busy_text() -> str | None:
    """Other users of the processors, now or in the last minute; None: none. Takes half a second."""
    busy, stolen_fraction = _watch_others()
    return "; ".join(one.text for one in (*busy, _stolen(stolen_fraction), _load()) if one) or None


def _governor() -> Caution | None:
    governor = _read(_CPU / "cpu0" / "cpufreq" / "scaling_governor")
    if governor in {None, "performance"}:
        return None
    return Caution(
        code="CPU_GOVERNOR",
        text=(
            f"the CPU's clock follows the load (governor {governor!r}), so first steps are"
            " slower than later ones"
        ),
        remedy="sudo cpupower frequency-set -g performance",
    )


def _watch_others() -> tuple[list[Caution], float | None]:
    """Cautions on other processes' CPU use, and the share of time stolen by the hypervisor."""
    ours = {os.getpid(), os.getppid()}
    before = {
        process.pid: process for process in psutil.process_iter(["name"]) if process.pid not in ours
    }
    first_s = {pid: _cpu_s(process) for pid, process in before.items()}
    stolen_before, total_before = _stolen_and_total_s()
    begin_s = time.monotonic()
    time.sleep(_LOOK_S)
    wall_s = time.monotonic() - begin_s
    stolen_after, total_after = _stolen_and_total_s()
    shares = {pid: (_cpu_s(process) - first_s[pid]) / wall_s for pid, process in before.items()}
    busy = {pid: share for pid, share in shares.items() if share > BUSY_FRACTION}
    stolen_fraction = (
        (stolen_after - stolen_before) / (total_after - total_before)
        if total_after > total_before
        else None
    )
    if not busy:
        return [], stolen_fraction
    worst = max(busy, key=lambda pid: busy[pid])
    caution = Caution(
        code="BUSY_NEIGHBOURS",
        text=(
            f"{len(busy)} other processes use {sum(busy.values()):.1f} cores, most of it"
            f" {before[worst].info['name']} ({worst})"
        ),
        remedy="stop them, or measure when they are done; numbers taken beside them vary",
    )
    return [caution], stolen_fraction


def _stolen(stolen_fraction: float | None) -> Caution | None:
    if stolen_fraction is None or stolen_fraction < 0.01:
        return None
    return Caution(
        code="STOLEN_TIME",
        text=(
            f"the hypervisor gave {format_fraction(stolen_fraction)} of the processor time to"
            " other machines"
        ),
        remedy="a machine with dedicated cores, or more repetitions and a look at the spread",
    )


def _load() -> Caution | None:
    load_1min = os.getloadavg()[0]
    n_cores = len(os.sched_getaffinity(0))
    if load_1min < 0.5 * n_cores:
        return None
    return Caution(
        code="LOAD",
        text=(
            f"{load_1min:.1f} processes ran or waited on average in the last minute, on"
            f" {n_cores} cores"
        ),
        remedy="wait until the machine is quiet (uptime)",
    )


def _swap() -> Caution | None:
    swap = psutil.swap_memory()
    if swap.used < 64 * 2**20:
        return None
    return Caution(
        code="SWAP",
        text=(
            f"{format_bytes(swap.used)} of memory lie in swap: a step that touches them waits"
            " for the disk"
        ),
        remedy="free memory, then sudo swapoff -a && sudo swapon -a",
    )


def _free_memory() -> Caution | None:
    memory = psutil.virtual_memory()
    if memory.available > MIN_FREE_FRACTION * memory.total:
        return None
    return Caution(
        code="LITTLE_MEMORY",
        text=f"{format_bytes(memory.available)} of {format_bytes(memory.total)} are free",
        remedy="end other processes that hold memory; points that need more are refused as out of memory",
    )


def _quota() -> Caution | None:
    quota = _read(Path("/sys/fs/cgroup/cpu.max"))
    if quota is None or quota.startswith("max"):
        return None
    quota_us, period_us = (int(part) for part in quota.split())
    n_cores = len(os.sched_getaffinity(0))
    if quota_us >= n_cores * period_us:
        return None
    return Caution(
        code="CPU_QUOTA",
        text=(
            f"this container may use {quota_us / period_us:.2g} of {n_cores} cores: steps stop"
            " when the quota of a period is spent"
        ),
        remedy=suggestions.flags("--threads", max(quota_us // period_us, 1))
        + ", or a container with whole cores (cpuset instead of quota)",
    )


def _hyperthreads() -> Caution | None:
    siblings = {
        _read(_CPU / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        for cpu in os.sched_getaffinity(0)
    } - {None}
    n_threads = len(os.sched_getaffinity(0))
    if not siblings or len(siblings) == n_threads:
        return None
    return Caution(
        code="HYPERTHREADS",
        text=(
            f"{n_threads} hardware threads share {len(siblings)} cores: two of them on one core"
            " do not do the work of two"
        ),
        remedy=suggestions.flags("--threads", len(siblings)),
    )


def _clock_source() -> Caution | None:
    source = _read(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource"))
    if source in {None, "tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"}:
        return None
    return Caution(
        code="SLOW_CLOCK",
        text=(
            f"the kernel's clock is {source!r}: reading it takes a microsecond or more, and it"
            " may drift"
        ),
        remedy="boot with clocksource=tsc where the processor's counter is stable",
    )


def _wait_policy() -> Caution | None:
    policy = os.environ.get("OMP_WAIT_POLICY")
    if policy is None or policy.lower() == "passive":
        return None
    return Caution(
        code="OMP_WAIT_POLICY",
        text=(
            f"OMP_WAIT_POLICY={policy}: threads that spin at barriers make a step 15 to 80"
            " times slower beside one busy neighbour"
        ),
        remedy="export OMP_WAIT_POLICY=passive; engines that this tool starts have it already",
    )


def placement(
    environment: Mapping[str, str] | None = None, cores: set[int] | None = None
) -> dict[pitfalls.PitfallName, float | None]:
    """Threads for each core, and NUMA nodes to which nothing binds them; None: nothing is set.

    Of a process with this environment and these cores; of this one, where there is none.
    """
    settings = os.environ if environment is None else environment
    threads = settings.get("OMP_NUM_THREADS", "")
    cores = os.sched_getaffinity(0) if cores is None else cores
    is_bound = any(name in settings for name in _BINDING)
    nodes = [cores & _cpus(_read(path / "cpulist") or "") for path in _NODES.glob("node[0-9]*")]
    return {
        "oversubscribed_threads": int(threads) / len(cores) if threads.isdecimal() else None,
        "unbound_numa": None if is_bound else float(sum(map(bool, nodes))),
    }


def _cpus(text: str) -> set[int]:
    """The kernel's list of CPUs: ``0-3,8``."""
    ends = [part.partition("-") for part in text.split(",") if part]
    return {cpu for low, _, high in ends for cpu in range(int(low), int(high or low) + 1)}


def _device() -> list[Caution]:
    nvml = NvmlDevices.open(1)
    if nvml is None:
        return []
    found: list[Caution] = []
    sample, n_others = nvml.sample(), nvml.other_processes()
    if sample.throttle_reasons:
        reasons = ", ".join(sample.throttle_reasons)
        found.append(
            pitfalls.judged("throttled", len(sample.throttle_reasons), evidence=reasons).caution
        )
    if n_others:
        found.append(
            Caution(
                code="DEVICE_SHARED",
                text=f"{n_others} processes compute on the accelerator",
                remedy="end them, or take another device",
            )
        )
    return found


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it ended while we looked, or is not ours to look at
        return 0.0
    return float(times.user + times.system)


def _stolen_and_total_s() -> tuple[float, float]:
    times = psutil.cpu_times()
    return float(getattr(times, "steal", 0.0)), float(sum(times))


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu_model() -> str | None:
    lines = (_read(Path("/proc/cpuinfo")) or "").splitlines()
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None
    )
    return name or platform.processor() or None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
