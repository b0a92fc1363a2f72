"""Families whose files state no longest context: Mamba and Mamba-2 alone, and RecurrentGemma.

Their recurrent state is described as that of linear attention (``RecurrentSpec``). Mamba's layers
store no keys and values; every third one of RecurrentGemma attends to a window.
"""

from dataclasses import replace
from typing import Final

from inferometer.inputs.family import ATTENTION_BIAS, MOST_LISTED_LAYERS, Config, Family, Flag

_NO_LIMIT_TOKENS: Final = 2**20
"""The longest context: these models have no positions, so that their files state none."""


def fill_mamba(config: Config) -> dict[str, object]:
    """Mamba: each channel is a value head, without key heads."""
    width, rank = config.get("hidden_size"), config.get("time_step_rank", "auto")
    expand, inner = config.get("expand", 2), config.get("intermediate_size")
    if isinstance(width, int):
        rank = -(-width // 16) if rank == "auto" else rank
        # Falcon-Mamba's file states both, and the latter counts.
        if inner is None and isinstance(expand, int):
            inner = expand * width
    return _heads(inner, 1) | {
        "block_kinds": _all_linear(config),
        "intermediate_size": inner,
        "linear_num_key_heads": 0,
        "linear_num_value_heads": inner,
        "linear_key_head_dim": config.get("state_size", 16),
        "linear_value_head_dim": 1,
        "linear_conv_kernel_dim": config.get("conv_kernel", 4),
        "linear_step_rank": rank,
    }


def fill_mamba2(config: Config) -> dict[str, object]:
    """Mamba-2: its groups, which share B and C, are the key heads."""
    n_heads, head_dim = config.get("num_heads", 128), config.get("head_dim", 64)
    inner = n_heads * head_dim if isinstance(n_heads, int) and isinstance(head_dim, int) else None
    return _heads(n_heads, head_dim) | {
        "block_kinds": _all_linear(config),
        "intermediate_size": inner,
        "linear_num_key_heads": config.get("n_groups", 8),
        "linear_num_value_heads": n_heads,
        "linear_key_head_dim": config.get("state_size", 128),
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": config.get("conv_kernel", 4),
    }


def fill_recurrent_gemma(config: Config) -> dict[str, object]:
    """RecurrentGemma: which layers attend, to a window, the heads of the recurrence, and the MLP.

    Its file has both halves of the MLP's width.
    """
    n_layers, n_heads = config.get("num_hidden_layers", 26), config.get("num_attention_heads", 10)
    width = config.get("lru_width") or config.get("hidden_size")
    size = config.get("intermediate_size", 15_360)
    repeated = config.get("block_types") or ["recurrent", "recurrent", "attention"]
    kinds = None
    if isinstance(repeated, list) and isinstance(n_layers, int) and n_layers <= MOST_LISTED_LAYERS:
        kinds = [_kind_of(repeated[i % len(repeated)]) for i in range(n_layers)]
    return {
        "block_kinds": kinds,
        "attention_window_size": config.get("attention_window_size", 2048),
        "mlp_size": size // 2 if isinstance(size, int) else None,
        "linear_num_key_heads": 0,
        "linear_num_value_heads": n_heads,
        "linear_key_head_dim": 1,
        "linear_value_head_dim": width // n_heads
        if isinstance(width, int) and isinstance(n_heads, int) and n_heads > 0
        else None,
        "linear_conv_kernel_dim": config.get("conv1d_width", 4),
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": _NO_LIMIT_TOKENS,
    }


def fill_zamba2(config: Config) -> dict[str, object]:
    """Zamba2: Mamba-2 in all layers; some of them also use blocks that they share."""
    hybrid, width = config.get("hybrid_layer_ids"), config.get("hidden_size", 2560)
    kinds, n_heads = config.get("layers_block_type"), config.get("num_attention_heads", 32)
    n_uses = kinds.count("hybrid") if isinstance(kinds, list) else None
    if n_uses is None and isinstance(hybrid, list):
        n_uses = len(hybrid)
    head_dim = config.get("attention_head_dim")
    n_states, expand = config.get("n_mamba_heads", 8), config.get("mamba_expand", 2)
    state_dim: int | None = None
    size = config.get("intermediate_size")
    if isinstance(width, int) and isinstance(expand, int) and isinstance(n_states, int):
        state_dim = expand * width // max(n_states, 1)
    if isinstance(width, int) and isinstance(n_heads, int):
        head_dim = head_dim or 2 * width // max(n_heads, 1)
        size = size or 4 * width
    return {
        "head_dim": head_dim,
        "mlp_size": size,
        "n_attention_blocks": n_uses,
        "n_feed_forward_blocks": n_uses,
        "linear_num_key_heads": config.get("mamba_ngroups", 1),
        "linear_num_value_heads": n_states,
        "linear_key_head_dim": config.get("mamba_d_state", 64),
        "linear_value_head_dim": state_dim,
        "linear_conv_kernel_dim": config.get("mamba_d_conv", 4),
    }


def _kind_of(block: object) -> str:
    kinds = {"recurrent": "linear_attention", "attention": "full_attention"}
    return kinds.get(str(block), str(block))


def _heads(n_heads: object, head_dim: object) -> dict[str, object]:
    """The heads of the states, over which tensor parallelism splits the matrices."""
    return {
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_heads,
        "head_dim": head_dim,
        "max_position_embeddings": _NO_LIMIT_TOKENS,
    }


def _all_linear(config: Config) -> list[str] | None:
    n_layers = config.get("num_hidden_layers")
    is_count = isinstance(n_layers, int) and 0 < n_layers <= MOST_LISTED_LAYERS
    return ["linear_attention"] * n_layers if is_count and isinstance(n_layers, int) else None


_MAMBA: Final = Family(
    class_name="MambaForCausalLM",
    names={"layer_types": "block_kinds"},
    fill=fill_mamba,
    ties_by_default=True,
    is_gated=False,
    norms_per_layer=1,
    recurrent="mamba1",
    is_hybrid=True,
    attends=False,
    note="its file states no longest context: vLLM takes 2,048 tokens unless --max-model-len states"
    " more",
    blocks="alone",
    conv_bias=Flag(name="use_conv_bias", default=True),
    projection_bias=Flag(name="use_bias", default=False),
    state_norm=False,
)

STATE_FAMILIES: Final[dict[str, Family]] = {
    "falcon_mamba": replace(_MAMBA, class_name="FalconMambaForCausalLM"),
    "mamba": _MAMBA,
    "mamba2": replace(
        _MAMBA,
        class_name="Mamba2ForCausalLM",
        fill=fill_mamba2,
        ties_by_default=False,
        recurrent="mamba2",
        state_norm=True,
    ),
    "zamba2": Family(
        class_name="Zamba2ForCausalLM",
        names={"intermediate_size": "mlp_size"},
        fill=fill_zamba2,
        ties_by_default=True,
        mlp_bias=Flag(name="add_bias_linear", default=False),
        norms_per_layer=1,
        recurrent="mamba2",
        is_hybrid=True,
        defaults={"max_position_embeddings": 4096, "num_mem_blocks": 1},
        conv_bias=Flag(name="use_conv_bias", default=True),
        projection_bias=Flag(name="add_bias_linear", default=False),
        blocks="beside",
    ),
    "recurrent_gemma": Family(
        class_name="RecurrentGemmaForCausalLM",
        names={
            "layer_types": "block_kinds",
            "intermediate_size": "mlp_size",
            "sliding_window": "attention_window_size",
        },
        fill=fill_recurrent_gemma,
        ties_by_default=True,
        qkv_bias=ATTENTION_BIAS,
        out_bias=True,
        mlp_bias=True,
        window="all",
        recurrent="rglru",
        is_hybrid=True,
        note="vLLM 0.33 does not run it; its file states no longest context",
        conv_bias=True,
        projection_bias=True,
        state_norm=False,
    ),
}
