import os
import subprocess
import sys

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
