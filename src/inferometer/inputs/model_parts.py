"""Types of the parts that few models have: sparse attention, recurrent states, further inputs."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

StateDType: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""Number formats of recurrent states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """Selection of tokens in sparse attention (DeepSeek-V3.2, arXiv 2512.02556).

    Small heads score them, and attention reads the best ``top_k_tokens``. ``n_layers`` have
    an indexer; the others take over the choice of the layer before (GLM-5.2).
    ``chooses_blocks``: whole blocks of tokens, by keys of 16 bits and without weights of the heads,
    and layers without an indexer attend to everything (MiniMax-M3).
    """

    n_heads: int
    head_dim: int
    top_k_tokens: int
    n_layers: int
    chooses_blocks: bool = False
    key_tokens: int = 1
    """Tokens that share a key (Qwen 3.8's blocks have their mean)."""
    has_key_gate: bool = False
    """Do gates weight the tokens that share a key (GLM-5.3)?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedSpec:
    """Attention to a window of tokens and to compressed blocks of all earlier ones (DeepSeek-V4).

    One row of ``AttentionSpec.head_dim`` numbers is key and value of all heads. ``n_fine_layers``
    compress ``fine_tokens`` tokens into a row, and their indexer chooses rows; ``n_coarse_layers``
    compress ``coarse_tokens`` and read all. Queries pass a latent, outputs are projected in
    ``n_output_groups``, and the residual has ``n_streams`` streams (hyper-connections).
    """

    q_lora_rank: int
    n_output_groups: int
    output_lora_rank: int
    fine_tokens: int
    n_fine_layers: int
    coarse_tokens: int
    n_coarse_layers: int
    n_streams: int


RecurrentKind: TypeAlias = Literal[
    "delta", "lightning", "mamba2", "mamba1", "convolution", "kda", "rglru"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentSpec:
    """Layers with a state of constant size instead of a KV cache.

    Every token updates a matrix of key by value channels for each value head, mostly behind a short
    convolution over queries, keys and values. ``kind``: Gated DeltaNet (arXiv 2412.06464);
    lightning attention (MiniMax-01, arXiv 2501.08313), without a convolution; Mamba-2 (arXiv
    2405.21060), whose groups are key heads and whose states are key channels; Mamba (arXiv
    2312.00752), each channel a value head; the convolution alone (LFM2); Kimi Delta Attention
    (arXiv 2510.26692); a real-gated linear recurrent unit (Griffin, arXiv 2402.19427), whose heads
    are the blocks of its gates' matrices.
    """

    n_layers: int
    n_key_heads: int
    n_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_dtype: StateDType = "float32"
    kind: RecurrentKind = "delta"
    has_conv_bias: bool = False
    has_projection_bias: bool = False
    has_norm: bool = True
    has_wide_gate: bool = False
    step_rank: int | None = None
    """Of Mamba's steps of time. ``has_wide_gate``: Kimi K3's output gate has no low rank."""
    has_wide_decays: bool = False
    """Decays without a low rank (Ling 3)."""
    has_qk_norm: bool = False
    """Norms over each head of queries and keys (Ling 2.5)."""

    @property
    def key_width(self) -> int:
        """Channels of all keys, and of all queries."""
        return self.n_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Channels of all values."""
        return self.n_value_heads * self.value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels that the convolution mixes: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def state_elements(self) -> int:
        """Numbers in the matrices that a layer keeps for a sequence."""
        return self.n_value_heads * self.key_head_dim * self.value_head_dim

    @property
    def vector_elements(self) -> int:
        """Weights of a layer beside matrices and their biases: convolution, decay and norms."""
        conv = self.conv_width * (self.conv_kernel + self.has_conv_bias)
        n_steps = (self.step_rank or 0) + 2 * self.key_head_dim
        return {
            "delta": conv + 2 * self.n_value_heads + self.value_head_dim,
            # its norm spans all heads
            "lightning": self.value_width + 2 * self.has_qk_norm * self.key_head_dim,
            "mamba2": conv + 3 * self.n_value_heads + self.has_norm * self.value_width,
            "mamba1": conv + self.state_elements + self.value_width + self.has_norm * n_steps,
            "convolution": conv,
            "rglru": conv + self.value_width,
            "kda": conv + self.n_value_heads + self.value_width + self.value_head_dim,
        }[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCounts:
    """Blocks of a model whose layers are not each one mixer and one feed-forward block.

    Each layer of Nemotron-H is one block; in Falcon-H1 attention and Mamba-2 are side by side.
    """

    n_attention: int
    n_feed_forward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpec:
    """Blocks of attention and an MLP whose weights several layers share (Zamba2).

    ``n_stored`` blocks are in memory, and the layers use them in turn. They see the embedding beside
    the hidden states, and each layer adds matrices of rank ``adapter_rank`` to the shared ones.
    """

    n_stored: int
    adapter_rank: int
    has_attention_adapters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSpec:
    """Residual streams, which each block mixes: hyper-connections.

    Those of low rank have norms over all streams, which take the place of other norms (Qwen 3.8).
    Others compute ``n_numbers`` from all streams, with ``n_scales`` (GLM-5.3, Hy4); ``has_head``:
    also what mixes the streams before the head.
    """

    n_streams: int
    rank: int | None = None
    n_numbers: int = 0
    n_scales: int = 0
    has_head: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeSpec:
    """Learned relative positions and short convolutions in each layer (Inkling).

    Each head has ``dim`` numbers of a query, which a table of distances turns into positions: up to
    ``extent`` tokens in layers of full attention, up to the window in others. Convolutions over
    ``conv_kernel`` tokens follow keys, values, attention and the feed-forward block.
    """

    dim: int
    extent: int
    conv_kernel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSpec:
    """Tables of n-grams: each token looks rows up and projects them (Qwen 3.8, LongCat Lite).

    The tables are memory alone. ``n_projections`` matrices turn ``n_in`` of their numbers into
    ``n_out``; ``n_vector_elements`` are norms and convolutions.
    """

    n_rows: int
    width: int
    n_projections: int
    n_in: int
    n_out: int
    n_vector_elements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputSpec:
    """An embedding of ``size`` numbers for each layer, which is added to its output (Gemma 4).

    Gemma 3n has ``n_streams`` residual streams (AltUp, arXiv 2301.13310) and, beside each layer's
    attention, a projection of rank ``laurel_rank`` (LAuReL, arXiv 2411.07501).
    """

    size: int
    vocab_size: int
    n_streams: int = 1
    laurel_rank: int | None = None
