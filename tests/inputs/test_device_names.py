"""Is a device found by the names that users, drivers and clouds have for it, and are its rates right?"""

from dataclasses import replace

import pytest

from inferometer.errors import SpecError
from inferometer.inputs import catalog
from inferometer.inputs.catalog import find_hardware
from inferometer.inputs.synonyms import instance_types


@pytest.mark.parametrize(
    ("name", "gb_per_s", "dtype", "tflop_per_s"),
    [
        ("A30", 933, "float16", 165),
        ("A2", 200, "bfloat16", 18),
        ("V100 16GB", 900, "float16", 125),
        ("Quadro RTX 8000", 672, "float16", 130.5),
        ("RTX 2080 Ti", 616, "float16", 53.8),
        ("P40", 346, "float32", 12),
        ("P100", 732, "float32", 9.3),
        ("RTX 5000 Ada", 576, "float8", 522),
        ("RTX 4090 D", 1008, "float32", 73.5),
        ("RTX A2000", 288, "float32", 8),
        ("Jetson AGX Orin", 204.8, "int8", 85),
        ("Jetson Thor", 273, "float4", 1035),
        ("H800", 3350, "bfloat16", 989),
        ("MI300A", 5300, "float8", 1961),
        ("MI100", 1228.8, "float16", 184.6),
        ("RX 7900 XT", 800, "float16", 103),
        ("R9700", 640, "float16", 191),
        ("Arc A770", 560, "int8", 275),
        ("Max 1550", 3276.8, "bfloat16", 839),
        ("M1 Ultra", 800, "float32", 21),
        ("M5", 153, "float16", 17.5),
        ("TPU v4", 1200, "bfloat16", 275),
        ("Trainium2", 2900, "bfloat16", 667),
        ("Xeon 6980P", 844, "bfloat16", 262),
    ],
)
def test_rates_are_those_that_vendors_state(name, gb_per_s, dtype, tflop_per_s):
    device = find_hardware(name)
    peak = device.peak_flop_per_s(dtype)
    assert device.memory_bytes_per_s.value == pytest.approx(gb_per_s * 1e9, rel=0.01)
    assert peak is not None
    assert peak.value == pytest.approx(tflop_per_s * 1e12, rel=0.03)


def test_links_are_one_direction():
    links = {
        name: find_hardware(name).link_bytes_per_s.value / 1e9
        for name in ("H800", "A800", "V100 16GB", "3090 Ti", "Titan RTX", "MI100", "TPU v4")
    }
    assert list(links.values()) == [200, 200, 150, 56.25, 50, 138, 270]


@pytest.mark.parametrize(
    "name", ["P4", "P40", "P100", "1080 Ti", "Titan V", "V100 16GB", "2080 Ti", "RTX 8000", "MI50"]
)
def test_devices_without_bfloat16_units_have_no_such_rate(name):
    device = find_hardware(name)
    assert device.peak_flop_per_s("bfloat16") is None
    assert device.usual_dtype == "float16"


def test_what_computes_16_bit_in_32_bit_units_has_the_rate_of_these():
    """The float16 units of the P40 do a 64th of it, and no engine uses them."""
    p40 = find_hardware("P40")
    assert p40.peak_flop_per_s("float16").value == p40.peak_flop_per_s("float32").value


@pytest.mark.parametrize("name", ["h100_sxm", "H100-SXM", "h100 sxm", "NVIDIA H100 SXM5 80GB"])
def test_devices_are_found_however_they_are_written(name):
    assert find_hardware(name).hardware_id == "h100_sxm"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("b200", "b200_sxm"),
        ("rtx4090", "rtx_4090"),
        ("NVIDIA A100-SXM4-80GB", "a100_80gb_sxm"),
        ("Tesla T4", "t4"),
        ("a6000", "rtx_a6000"),
        ("g5.xlarge", "a10g"),
        ("Standard_NC24ads_A100_v4", "a100_80gb_pcie"),
    ],
)
def test_what_only_one_device_is_called_means_that_one(name, meant):
    assert find_hardware(name).hardware_id == meant


@pytest.mark.parametrize("name", ["", "_", "80gb", "80gb sxm", "rtx", "rtx 8gb", "8", "10", "m6"])
def test_what_several_or_none_are_called_means_none(name):
    with pytest.raises(SpecError):
        find_hardware(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("l40", "l40"),
        ("NVIDIA L20", "l20"),
        ("L40S", "l40s"),
        ("RTX 4090 laptop", "rtx_4090_laptop"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "rtx_5090_laptop"),
        ("4090", "rtx_4090"),
        ("5090", "rtx_5090"),
        ("4070", "rtx_4070"),
        ("4070ti", "rtx_4070ti"),
        ("RTX 4070 Ti SUPER", "rtx_4070ti_super"),
        ("5070", "rtx_5070"),
        ("9070xt", "rx_9070_xt"),
        ("7900 XTX", "rx_7900_xtx"),
        ("W7900", "radeon_pro_w7900"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx_pro_6000_ws"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx_pro_6000_maxq"),
        ("NVIDIA RTX PRO 5000 Blackwell", "rtx_pro_5000_48gb"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "arc_pro_b60"),
        ("tpu7x", "tpu_v7x"),
        ("RTX PRO 6000", "rtx_pro_6000_ws"),
        ("RTX PRO 6000 Blackwell", "rtx_pro_6000_ws"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000_server"),
        ("4090D", "rtx_4090_d"),
        ("4060", "rtx_4060"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "rtx_4060_laptop"),
        ("RTX 4070 Super", "rtx_4070_super"),
        ("3090ti", "rtx_3090ti"),
        ("RX 7900 XT", "rx_7900_xt"),
        ("9070", "rx_9070"),
        ("Quadro RTX 6000", "quadro_rtx_6000"),
        ("RTX 8000", "rtx_8000"),
        ("NVIDIA RTX 5000 Ada Generation", "rtx_5000_ada"),
        ("NVIDIA TITAN RTX", "titan_rtx"),
        ("V100 16GB", "v100_sxm2_16gb"),
        ("Tesla V100-PCIE-16GB", "v100_pcie_16gb"),
        ("Tesla P100-PCIE-16GB", "p100_pcie_16gb"),
        ("NVIDIA A100-PCIE-40GB", "a100_40gb_pcie"),
        ("A100 PCIe", "a100_80gb_pcie"),
        ("H800", "h800_sxm"),
        ("Jetson Orin Nano Super", "jetson_orin_nano_8gb"),
        ("Jetson Thor", "jetson_agx_thor"),
        ("Sapphire Rapids", "xeon_8480p"),
        ("Granite Rapids", "xeon_6980p"),
        ("Intel Data Center GPU Max 1550", "max_1550"),
        ("Trn2", "trainium2"),
        ("Inferentia 2", "inferentia2"),
    ],
)
def test_variants_of_a_card_are_told_apart(name, meant):
    assert find_hardware(name).hardware_id == meant


@pytest.mark.parametrize(
    "name",
    [
        "4080 laptop",
        "5090D",
        "3080 super",
        "7900",
        "rtx 4000",
        "rtx 6000",
        "RTX 5060 Ti 8GB",
        "1080",
    ],
)
def test_no_other_variant_stands_in_for_a_card_that_is_unknown(name):
    with pytest.raises(SpecError, match="does not know"):
        find_hardware(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("M1", "apple_m1_8"),
        ("Apple M1", "apple_m1_8"),
        ("MacBook Air M1", "apple_m1_8"),
        ("MacBook Pro M1 Pro", "apple_m1_pro_16"),
        ("Mac Studio M1 Max", "apple_m1_max_32"),
        ("M1 Pro", "apple_m1_pro_16"),
        ("Apple M1 Max", "apple_m1_max_32"),
        ("m1-ultra", "apple_m1_ultra_64"),
        ("M2", "apple_m2_10"),
        ("M2 Max", "apple_m2_max_38"),
        ("M3", "apple_m3_10"),
        ("M3 Pro", "apple_m3_pro_18"),
        ("M4", "apple_m4_10"),
        ("M5", "apple_m5_10"),
    ],
)
def test_the_plain_name_of_an_apple_chip_is_its_smallest(name, meant):
    assert find_hardware(name).hardware_id == meant


def test_no_larger_chip_stands_in_for_an_apple_chip_that_is_unknown(monkeypatch):
    """`M1` was M1 Max where the catalogue had no other of its generation."""
    m1_max = find_hardware("apple_m1_max_32")
    monkeypatch.setattr(catalog, "load_hardware", lambda: (m1_max,))
    assert find_hardware("M1 Max").hardware_id == "apple_m1_max_32"
    with pytest.raises(SpecError):
        find_hardware("M1")


def test_an_unknown_device_names_what_is_close():
    with pytest.raises(SpecError, match="H100-SXN") as caught:
        find_hardware("H100-SXN")
    assert "h100_sxm" in (caught.value.try_ or "")


@pytest.mark.parametrize("name", ["8xH100", "8 x h100_sxm", "2*MI300X", "8 H100", "8x H100 SXM"])
def test_a_number_of_devices_is_no_name_of_one(name):
    with pytest.raises(SpecError, match="is the name of one") as caught:
        find_hardware(name)
    assert f"--tp {name[0]}" in str(caught.value.try_)


@pytest.mark.parametrize(
    ("where", "try_"), [("NAME", "H100 SXM"), ("--hardware", "--hardware 'H100 SXM'")]
)
def test_where_no_flag_takes_the_number_the_device_alone_is_suggested(where, try_):
    with pytest.raises(SpecError, match="8 devices") as caught:
        find_hardware("8x H100 SXM", where=where)
    assert (caught.value.where, caught.value.try_) == (where, try_)
    assert "--tp" not in str(caught.value.allowed)


def test_every_instance_type_of_a_cloud_has_a_device_of_the_catalogue():
    types = instance_types()
    assert {device for _, device in types.values()} <= {
        one.hardware_id for one in catalog.load_hardware()
    }
    assert all(name == name.lower() and "_" not in name for name in types)
    with pytest.raises(SpecError, match="is 8 devices") as caught:
        find_hardware("p5.48xlarge")
    assert caught.value.try_ == "--hardware h100_sxm --tp 8"


def test_all_devices_are_a_study():
    with pytest.raises(SpecError, match="'all' is no device") as caught:
        find_hardware("all")
    assert caught.value.try_ == "inferometer study devices MODEL"


def test_an_id_without_a_digit_is_found(monkeypatch):
    device = replace(find_hardware("l40s"), hardware_id="testcard", name="Test card")
    monkeypatch.setattr(catalog, "load_hardware", lambda: (device,))
    assert find_hardware("testcard") is device


@pytest.mark.parametrize(
    ("name", "device"),
    [("DGX Spark", "gb10"), ("dgx_spark", "gb10"), ("strix-halo", "ryzen_ai_max_395")],
)
def test_a_product_without_a_number_is_found_where_it_is_the_only_one(name, device):
    assert find_hardware(name).hardware_id == device
    with pytest.raises(SpecError):
        find_hardware("amd instinct")
    with pytest.raises(SpecError):
        find_hardware("spark")
