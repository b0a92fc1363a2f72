"""Are a device's counters read from each of their sources, and absent where they are not there?"""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from inferometer.cli.main import app
from inferometer.errors import RecordError
from inferometer.records.device_time import is_counters_file, read_counters

PAGE = """# HELP DCGM_FI_PROF_DRAM_ACTIVE Ratio of cycles the device memory interface is active.
# TYPE DCGM_FI_PROF_DRAM_ACTIVE gauge
DCGM_FI_PROF_DRAM_ACTIVE{{gpu="0",UUID="GPU-1",device="nvidia0"}} {dram}
DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="GPU-1",device="nvidia0"}} 0.5
DCGM_FI_PROF_PCIE_RX_BYTES{{gpu="0",UUID="GPU-1",device="nvidia0"}} {pcie}
DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-1",device="nvidia0"}} 97
DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-1",device="nvidia0"}} 61
DCGM_FI_PROF_SM_ACTIVE{{gpu="1",UUID="GPU-2",device="nvidia1"}} 0.01
"""
DCGMI = """#Entity   SMACT        DRAMA        PCITX            NVLTX
ID
GPU 0     0.995        0.204        1000000          N/A
GPU 1     0.002        0.001        2000             N/A
GPU 0     0.985        0.206        3000000          N/A
"""
SMI = """# gpu    sm   mem   enc   dec rxpci txpci
# Idx     %     %     %     %  MB/s  MB/s
    0    98    61     0     0   120    15
    0   100    63     0     0     -    25
"""


def read(tmp_path, text):
    (tmp_path / "counters.txt").write_text(text)
    assert is_counters_file(tmp_path / "counters.txt")
    found = read_counters(tmp_path / "counters.txt")
    return {(one.device, one.name): one.values.tolist() for one in found}


def test_pages_of_dcgm_exporter_one_after_the_other(tmp_path):
    text = PAGE.format(dram=0.7, pcie=1e9) + PAGE.format(dram=0.9, pcie=3e9)
    assert read(tmp_path, text) == {
        ("GPU 0", "SM active"): [0.5, 0.5],
        ("GPU 0", "DRAM active"): [0.7, 0.9],
        ("GPU 0", "device busy"): pytest.approx([0.97, 0.97]),
        ("GPU 0", "PCIe received"): [1e9, 3e9],
        ("GPU 1", "SM active"): [0.01, 0.01],
    }


def test_dmon_of_dcgmi_and_of_nvidia_smi(tmp_path):
    found = read(tmp_path, DCGMI)
    assert found["GPU 0", "SM active"] == [0.995, 0.985]
    assert found["GPU 1", "PCIe sent"] == [2000]
    assert not [key for key in found if key[1].startswith("NVLink")], "N/A is absent, not 0"
    assert read(tmp_path, SMI) == {
        ("GPU 0", "device busy"): pytest.approx([0.98, 1.0]),
        ("GPU 0", "memory busy"): pytest.approx([0.61, 0.63]),
        ("GPU 0", "PCIe sent"): [15e6, 25e6],
        ("GPU 0", "PCIe received"): [120e6],
    }


def test_a_file_without_counters_is_refused(tmp_path):
    (tmp_path / "x").write_text('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 61\n')
    with pytest.raises(RecordError, match="no device counters"):
        read_counters(tmp_path / "x")
    assert not is_counters_file(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PAGE.format(dram=0.8, pcie=1e9), "GPU 0: memory bandwidth is what is used up (SM active"),
        (DCGMI, "GPU 0: no part is used up"),
        (DCGMI, "GPU 1: neither memory nor SMs are busy"),
        (PAGE.format(dram=0.8, pcie=1e9), "GPU 1: undecided, DRAM active is not in the file"),
        (SMI, "GPU 0: undecided, DRAM active is not in the file (device busy 99"),
        (
            DCGMI.replace("DRAMA", "TENSO"),
            "GPU 0: undecided, DRAM active is not in the file (SM active",
        ),
        (DCGMI.replace("SMACT", "TENSO").replace("PCITX", "SMACT"), "arithmetic is what is used"),
    ],
)
def test_what_is_busy_in_words(tmp_path, text, said):
    (tmp_path / "counters").write_text(text)
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "counters"), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert any(said in one for one in answer["findings"]), answer["findings"]
    rates = [row for row in answer["counters"] if row["name"] == "PCIe sent"]
    assert all(
        row["mean_fraction"] is None and np.isfinite(row["mean_bytes_per_s"]) for row in rates
    )
