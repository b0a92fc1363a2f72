"""Translates the fields of models with tables of n-grams: Qwen 3.8 (Qwen4-Exp) and LongCat.

A token looks up rows for itself with the tokens before it, by hashes; so the tables have many rows.
"""

from inferometer.inputs.family import MOST_LISTED_LAYERS, Config

_MOST_TABLES = 1000


def fill_longcat(config: Config) -> dict[str, object]:
    """LongCat: each layer has two halves of attention and an MLP, and experts beside both.

    Lite has tables of n-grams beside the embedding, each with two rows more than the one before.
    Source: vLLM 0.32.0, ``longcat_flash_ngram.py``.
    """
    n_layers, n_zero = config.get("num_layers"), config.get("zero_expert_num", 256)
    filled: dict[str, object] = {"zero_expert_num": n_zero}
    if isinstance(n_layers, int) and 0 < n_layers <= MOST_LISTED_LAYERS:
        filled |= {
            "n_halves": 2 * n_layers,
            "n_feed_forward_blocks": 3 * n_layers,
            "mlp_layer_types": ["dense"] * (2 * n_layers),
        }
    ratio, vocab_size = config.get("ngram_vocab_size_ratio"), config.get("vocab_size")
    n_split, n_tokens = config.get("emb_split_num", 4), config.get("emb_neighbor_num", 4)
    width = config.get("hidden_size")
    sizes = (ratio, vocab_size, n_split, n_tokens, width)
    counts = [one for one in sizes if isinstance(one, int) and one > 0]
    if len(counts) != len(sizes):
        return filled
    ratio, vocab_size, n_split, n_tokens, width = counts
    n_tables = n_split * (n_tokens - 1)
    if not 0 < n_tables <= _MOST_TABLES:
        return filled
    return filled | {
        "ngram_rows": n_tables * ratio * vocab_size + n_tables**2,
        "ngram_width": width // n_tables,
        "ngram_projections": n_tables,
        "ngram_in": width // n_tables,
        "ngram_out": width,
    }


def fill_qwen4(config: Config) -> dict[str, object]:
    """Qwen 3.8: an indexer over blocks of keys, and tables of n-grams for some layers.

    Each table has a prime number of rows, a larger one than the table before. Source: the class of
    transformers 5.23 (qwen4_exp).
    """
    kinds = config.get("layer_types")
    named = [str(one) for one in kinds] if isinstance(kinds, list) else []
    attends = [one != "linear_attention" for one in named]
    has_indexer = config.get("indexer_budget") is not None
    filled: dict[str, object] = {
        "block_kinds": ["full_attention" if one else "linear_attention" for one in attends] or None,
        "index_topk": config.get("indexer_budget"),
        "index_n_heads": config.get("indexer_n_heads"),
        "index_head_dim": config.get("indexer_head_dim"),
        "index_block_size": config.get("indexer_compress_ratio"),
        "index_key_tokens": config.get("indexer_compress_ratio"),
        "indexer_types": ["full" if one else "none" for one in attends] if has_indexer else None,
        "hc_count": config.get("hc_count", 4),
        "hc_lowrank": config.get("hc_lowrank", 320),
    }
    layers, width = config.get("ple_layer_ids"), config.get("hidden_size")
    size = config.get("ple_embed_dim") or width
    numbers = (
        width, size, config.get("ngram_size", 3), config.get("heads_per_ngram", 8),
        config.get("ngram_vocab_size_base", 20_000_000), filled["hc_count"],
        config.get("make_ngram_vocab_size_divisible_by", 128), config.get("ple_conv_kernel_size", 4),
    )  # fmt: skip
    counts = [one for one in numbers if isinstance(one, int) and one > 0]
    if not isinstance(layers, list) or not layers or len(counts) != len(numbers):
        return filled
    width, size, n_tokens, n_heads, base, n_streams, unit, kernel = counts
    n_tables = (n_tokens - 1) * n_heads
    if not 0 < n_tables <= _MOST_TABLES or base > 10**9:
        return filled
    n_rows = sum(_primes_from(base, n_tables))
    n_layers = len({str(one) for one in layers})
    return filled | {
        "ngram_rows": n_layers * -(-n_rows // unit) * unit,
        "ngram_width": size // n_tables,
        "ngram_projections": n_layers,
        "ngram_in": size,
        "ngram_out": (n_streams + 1) * width,
        "ngram_vectors": n_layers * n_streams * width * (3 + kernel),
    }


def _primes_from(start: int, n_primes: int) -> list[int]:
    found, one = list[int](), start
    while len(found) < n_primes:
        if one > 1 and all(one % divisor for divisor in range(2, int(one**0.5) + 1)):
            found.append(one)
        one += 1
    return found


def first_prime(n_rows: int, n_tables: int) -> int:
    """The least number of rows of tables that have this number together, as ``fill_qwen4`` counts."""
    start = n_rows // n_tables
    while start > 1 and sum(_primes_from(start, n_tables)) > n_rows:
        start -= 1
    return start
