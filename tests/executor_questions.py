"""Which questions are asked of every executor?"""

# What a limit of time cuts depends on the machine.
SIZE = (
    "size",
    "llama-3.1-8b",
    "--rate",
    3,
    "--slo",
    "ttft:p95<2s",
    "--gpus",
    "l40s,a100_80gb_sxm",
    "--tp",
    1,
    "--time-limit",
    "10min",
    "--probe-requests",
    100,
)
SIMULATE = (
    "simulate",
    "llama-3.1-8b",
    "--hardware",
    "h100_sxm",
    "--rate",
    3,
    "--requests",
    200,
    "--datasheet",
)
CAPACITY = (
    "capacity",
    "llama-3.1-8b",
    "--hardware",
    "h100_sxm",
    "--slo",
    "ttft:p95<1s",
    "--probe-requests",
    100,
    "--resolution",
    0.3,
    "--time-limit",
    "10min",
    "--datasheet",
)
