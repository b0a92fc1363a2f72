import os
import subprocess
import sys

from inferometer.api.machine import Doctor, doctor
from inferometer.measure import host
from inferometer.measure.host import examine_machine, host_facts


def test_facts_name_the_machine_and_not_its_owner():
    facts = host_facts(n_threads=2, uses_device=False)
    assert facts.n_threads_used == 2
    assert facts.n_cores == len(os.sched_getaffinity(0))
    assert facts.memory_bytes is not None
    assert facts.memory_bytes > 2**28
    assert facts.accelerator is None
    assert facts.hostname_hash is not None
    assert os.uname().nodename not in facts.hostname_hash


def test_environment_is_allow_listed(monkeypatch):
    monkeypatch.setenv("SOME_SECRET", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    variables = dict(host_facts(n_threads=None, uses_device=False).environment)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert "SOME_SECRET" not in variables


def test_a_busy_neighbour_is_seen():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            found = {caution.code: caution for caution in examine_machine()}
        finally:
            neighbour.kill()
    assert "BUSY_NEIGHBOURS" in found


def test_every_caution_has_a_remedy(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setattr(host, "BUSY_FRACTION", -1.0)
    cautions = examine_machine()
    assert {"OMP_WAIT_POLICY", "BUSY_NEIGHBOURS"} <= {caution.code for caution in cautions}
    assert all(caution.text and caution.remedy for caution in cautions)


def test_what_the_kernel_says_is_read(tmp_path, monkeypatch):
    # This machine has no frequency governor and no hyperthreads: a copy of what other kernels
    # write.
    for cpu in os.sched_getaffinity(0):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0-127\n")
    (tmp_path / "cpu0" / "cpufreq").mkdir(parents=True)
    (tmp_path / "cpu0" / "cpufreq" / "scaling_governor").write_text("powersave\n")
    monkeypatch.setattr(host, "_CPU", tmp_path)
    codes = {caution.code for caution in examine_machine()}
    assert "CPU_GOVERNOR" in codes
    assert "HYPERTHREADS" in codes or len(os.sched_getaffinity(0)) == 1
    assert host_facts(n_threads=None, uses_device=False).cpu_governor == "powersave"


def test_threads_beyond_the_cores_and_unbound_nodes_are_seen(tmp_path, monkeypatch):
    cores = os.sched_getaffinity(0)
    monkeypatch.setattr(host, "_NODES", tmp_path)
    for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND"):
        monkeypatch.delenv(name, raising=False)

    def codes(n_threads):
        monkeypatch.setenv("OMP_NUM_THREADS", str(n_threads))
        return {caution.code: caution for caution in doctor(Doctor()).cautions}

    found = codes(2 * len(cores))["OVERSUBSCRIBED_THREADS"]
    assert "2 threads for each core" in found.text
    assert "OMP_NUM_THREADS" in found.remedy
    half = codes(len(cores))
    assert "OVERSUBSCRIBED_THREADS" not in half
    assert "UNBOUND_NUMA" not in half
    # This machine has one node: a copy of what the kernel of one with two writes.
    for node, cpus in enumerate((f"{min(cores)}", f"{max(cores)},{max(cores) + 1}-999")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus + "\n")
    assert ("UNBOUND_NUMA" in codes(1)) == (len(cores) > 1)
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    assert "UNBOUND_NUMA" not in codes(1)
