"""Names of devices among users, drivers and clouds: words, numbers of them, instance types."""

import re
from typing import Final

_DEVICE_WORDS: Final = {
    "mi300": "mi300x",
    "mi325": "mi325x",
    "mi355": "mi355x",
    "mi250": "mi250x",
    "mi350": "mi350x",
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "trillium": "v6e",
    "v7": "v7x",
    "tpu7x": "v7x",
    "ironwood": "v7x",
    "mobile": "laptop",
    "notebook": "laptop",
    "trn1": "trainium1",
    "trn2": "trainium2",
    "trn3": "trainium3",
    "inf2": "inferentia2",
    "80g": "80gb",
    "40g": "40gb",
    "32g": "32gb",
    "16g": "16gb",
    "sxm4": "sxm",
    "sxm5": "sxm",
    **{f"{number}ada": f"{number}_ada" for number in (2000, 4000, 4500, 5000, 6000)},
}
"""Words with the same meaning; a driver's `SXM4` and a price list's `SXM` are one socket."""

_NO_NEWS: Final = {
    "nvidia", "amd", "intel", "google", "geforce", "tesla", "instinct", "graphics", "gpu", "tpu",
    "generation", "oam", "hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr6x", "gddr7", "r", "tm",
    "cpu", "apple", "processor", "of", "the", "per", "chip", "card", "socket", "desktop", "whole", "core", "edition",
}  # fmt: skip
"""Words of drivers' names that distinguish no devices of the catalogue."""

OTHER_CARDS: Final = frozenset(("ti", "super", "xt", "xtx", "d", "laptop", "maxq"))
"""Words of a card's name without which it names another card: RTX 4070 is not RTX 4070 Ti."""
GENERATIONS: Final = frozenset(("pro", "ada", "quadro"))
"""Words without which a bare number names cards of several years: RTX 4000, RTX 6000."""
LARGER_CHIPS: Final = frozenset(("pro", "max", "ultra"))
"""Words of Apple's chips without which the name means the smallest: M1 is not M1 Max."""
APPLE_CHIP: Final = re.compile(r"m\d")
NO_NAME: Final = re.compile(r"\d{1,2}|\d+gb|sxm\d?|pcie|nvl|[gr]tx|rx")
"""Words that many devices have: a number of cores or of a generation, memory, form, brand."""

_COUNTED: Final = re.compile(
    r"(?:(?P<before>\d{1,4})\s*[xX×*](?!eon)\s*|(?P<plain>\d{1,3})\s+(?!(?:gi?b|x)\b))"
    r"(?P<last>[a-zA-Z][^,]*|\d{3,4}\b[^,]*)"
    r"|(?P<first>[a-zA-Z][^,]*?)\s*(?<!\b[rg]t)(?<!\bm)(?<!\bma)[x×*:]\s*(?P<after>\d{1,4})",
    re.IGNORECASE,
)
"""The x of RTX 4090, GTX 1080, MX 450 and Max 1550 is not a multiplication sign, nor Xeon's."""
_OF_CLOUDS: Final = tuple(
    (re.compile(pattern), device, n)
    for pattern, device, n in (
        (r"p5\.4xlarge", "h100_sxm", "1"),
        (r"p5\.48xlarge|a3-(?:mega|edge)gpu-8g|nd(?:96isr)?-h100-v5", "h100_sxm", "8"),
        (r"a3-highgpu-([1248])g|bm\.gpu\.h100\.(8)", "h100_sxm", None),
        (r"p5en?\.48xlarge|a3-ultragpu-8g|nd(?:96isr)?-h200-v5|bm\.gpu\.h200\.8", "h200_sxm", "8"),
        (r"p6-b200\.48xlarge|a4-highgpu-8g|bm\.gpu\.b200\.8", "b200_sxm", "8"),
        (r"p6-b300\.48xlarge", "b300_sxm", "8"),
        (r"nd(?:96isr)?-mi300x-v5|bm\.gpu\.mi300x\.8", "mi300x", "8"),
        (r"p4d\.24xlarge|nd96asr(?:-a100)?-v4|bm\.gpu4\.8", "a100_40gb_sxm", "8"),
        (r"a2-highgpu-([1248])g|a2-megagpu-(16)g", "a100_40gb_sxm", None),
        (r"p4de\.24xlarge|nd96amsr-a100-v4|bm\.gpu\.a100-v2\.8", "a100_80gb_sxm", "8"),
        (r"a2-ultragpu-([1248])g", "a100_80gb_sxm", None),
        (r"nc24ads-a100-v4", "a100_80gb_pcie", "1"),
        (r"nc48ads-a100-v4", "a100_80gb_pcie", "2"),
        (r"nc96ads-a100-v4", "a100_80gb_pcie", "4"),
        (r"nc40ads-h100-v5", "h100_nvl", "1"),
        (r"nc80adis-h100-v5", "h100_nvl", "2"),
        (r"nv36adm?s-a10-v5|nc(?:8|16)ads-a10-v4|vm\.gpu\.a10\.1", "a10", "1"),
        (r"nv72ads-a10-v5|nc32ads-a10-v4|vm\.gpu\.a10\.2", "a10", "2"),
        (r"bm\.gpu\.a10\.4", "a10", "4"),
        (r"nc(?:4|8|16)as-t4-v3", "t4", "1"),
        (r"nc64as-t4-v3", "t4", "4"),
        (r"nc6s-v3", "v100_pcie_16gb", "1"),
        (r"nc12s-v3", "v100_pcie_16gb", "2"),
        (r"nc24r?s-v3", "v100_pcie_16gb", "4"),
        (r"p3dn\.24xlarge|nd40rs-v2", "v100_sxm2_32gb", "8"),
        (r"p3\.2xlarge", "v100_sxm2_16gb", "1"),
        (r"p3\.8xlarge", "v100_sxm2_16gb", "4"),
        (r"p3\.16xlarge", "v100_sxm2_16gb", "8"),
        (r"trn1\.2xlarge", "trainium1", "1"),
        (r"trn1n?\.32xlarge", "trainium1", "16"),
        (r"trn2\.3xlarge", "trainium2", "1"),
        (r"trn2u?\.48xlarge", "trainium2", "16"),
        (r"inf2\.8?xlarge", "inferentia2", "1"),
        (r"inf2\.24xlarge", "inferentia2", "6"),
        (r"inf2\.48xlarge", "inferentia2", "12"),
        (r"g4dn\.(?:|2|4|8|16)xlarge", "t4", "1"),
        (r"g4dn\.12xlarge", "t4", "4"),
        *(
            (rf"{family}\.{size}", device, n)
            for family, device in (("g5", "a10g"), ("g6", "l4"), ("g6e", "l40s"))
            for size, n in (
                (r"(?:|2|4|8|16)xlarge", "1"),
                (r"(?:12|24)xlarge", "4"),
                (r"48xlarge", "8"),
            )
        ),
        (r"g2-standard-(?:4|8|12|16|32)", "l4", "1"),
        (r"g2-standard-24", "l4", "2"),
        (r"g2-standard-48", "l4", "4"),
        (r"g2-standard-96", "l4", "8"),
        (r"bm\.gpu\.l40s\.4", "l40s", "4"),
        (r"a4x-highgpu-4g", "gb200", "4"),
        (r"g4-standard-48", "rtx_pro_6000_server", "1"),
        (r"g4-standard-96", "rtx_pro_6000_server", "2"),
        (r"g4-standard-192", "rtx_pro_6000_server", "4"),
        (r"g4-standard-384", "rtx_pro_6000_server", "8"),
        (r"ct5lp-hightpu-([148])t", "tpu_v5e", None),
        (r"ct5p-hightpu-([14])t", "tpu_v5p", None),
        (r"ct6e-standard-([148])t", "tpu_v6e", None),
        *(
            (rf"gpu-(\d)x-{name}", device, None)
            for name, device in (
                ("b200(?:-sxm6)?", "b200_sxm"),
                ("h100-sxm5", "h100_sxm"),
                ("h100-pcie", "h100_pcie"),
                ("gh200", "gh200_96gb"),
                ("a100-80gb(?:-sxm4)?", "a100_80gb_sxm"),
                ("a100(?:-sxm4)?", "a100_40gb_sxm"),
                ("a10", "a10"),
                ("a6000", "rtx_a6000"),
                ("rtx6000", "quadro_rtx_6000"),
                ("v100(?:-n)?", "v100_sxm2_16gb"),
            )
        ),
    )
)
"""Instance types of AWS, Google Cloud, Azure, Oracle and Lambda, their device and how many of it.

Source: the providers' tables of accelerated machine types. None: the number is in the name.
"""

USUAL_DEVICES: Final = (
    "h100_sxm",
    "h200_sxm",
    "a100_80gb_sxm",
    "a100_80gb_pcie",
    "a100_40gb_sxm",
    "v100_sxm2_32gb",
    "v100_sxm2_16gb",
    "p100_pcie_16gb",
    "rtx_a2000_12gb",
    "rtx_pro_6000_ws",
    "mi50_32gb",
)
"""The usual one of devices that share a name, the first of those here: `h100` is the SXM one."""


def counted_devices(text: str) -> tuple[int, str] | None:
    """Number and device in text such as `8xH100` or `8 H100`, or in a cloud's instance type.

    None for text without a number of devices.

    Example
    -------
    >>> counted_devices("8xH100"), counted_devices("A100-80GB:4"), counted_devices("rtx4090")
    ((8, 'H100'), (4, 'A100-80GB'), None)
    >>> counted_devices("p5.48xlarge"), counted_devices("Standard_NC24ads_A100_v4")
    ((8, 'h100_sxm'), (1, 'a100_80gb_pcie'))
    """
    rented = re.sub(r"[_\s]", "-", text.strip().lower())
    rented = rented.removeprefix("ml.").removeprefix("standard-")
    for pattern, device, n in _OF_CLOUDS:
        instance = pattern.fullmatch(rented)
        if instance is not None:
            return int(n or next(filter(None, instance.groups()))), device
    match = _COUNTED.fullmatch(text.strip())
    if match is None:
        return None
    n = match["before"] or match["plain"] or match["after"]
    return int(n), match["last"] or match["first"]


def device_words(name: str) -> frozenset[str]:
    """The distinctive words of a device's name, without order, case and punctuation.

    Example
    -------
    >>> sorted(device_words("NVIDIA H100 80GB HBM3")), sorted(device_words("a100-sxm4-80g"))
    (['80gb', 'h100'], ['80gb', 'a100', 'sxm'])
    """
    plain = re.sub(r"\((?:r|tm)\)|\d+-core processor", " ", name.lower())
    plain = re.sub(r"\b(rtx|pro)(?=\d)", r"\1 ", plain)
    plain = re.sub(r"(?<=\d)(?=(?:sxm|pcie|nvl)\d?\b)", " ", plain)
    plain = re.sub(r"(?<=\d{4})(?=(?:ti|super|xtx?|d)(?![a-z0-9]))", " ", plain)
    plain = re.sub(r"(?<=nano)[-_ ]super\b", "", plain)  # a mode of the Jetson, not another card
    plain = re.sub(r"max[-_ ]q\b", "maxq", plain)
    words = [_DEVICE_WORDS.get(word, word) for word in re.split(r"[^a-z0-9.+]+", plain)]
    return frozenset(
        part for word in words for part in word.split("_") if part and part not in _NO_NEWS
    )
