"""Names of OpenTelemetry spans and metrics, ours and those of servers.

All names of OpenTelemetry's GenAI conventions that this program writes or reads are here: the
conventions are in development, so that a renaming needs a change in this file only.

Source
------
open-telemetry/semantic-conventions-genai, docs/gen-ai and model/manifest.yaml, all in development:
the names of the schema below, which are also those of opentelemetry-semantic-conventions 0.66b2
(semconv 1.44). The first release of their own, v0.1.0, renames the client's metrics to
``gen_ai.client.inference.*``; no package has it yet. vLLM 0.32.0, vllm/tracing/utils.py, whose
names for token counts are older ones.
"""

from typing import Final, NamedTuple

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
"""Version of the conventions whose names the load client writes."""

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
IS_STREAMING: Final = "gen_ai.request.stream"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"
GENERATIONS: Final = frozenset({CHAT, TEXT_COMPLETION, "generate_content"})
"""Operations that ask a model for tokens; agents and tools contain such spans."""
OPENAI: Final = "openai"
"""Name of the interface as the client sees it, for any server."""


class Instrument(NamedTuple):
    """A histogram of the conventions."""

    name: str
    unit: str
    edges: tuple[float, ...]
    """Upper edges of its buckets, except the last bucket, which has none."""
    says: str


_OPERATION_EDGES_S: Final = tuple(0.01 * 2**power for power in range(14))
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105
TOKEN_USAGE: Final = Instrument(
    "gen_ai.client.token.usage",
    "{token}",
    tuple(float(4**power) for power in range(14)),
    "Number of input and output tokens used.",
)
CLIENT_DURATION: Final = Instrument(
    "gen_ai.client.operation.duration", "s", _OPERATION_EDGES_S, "GenAI operation duration."
)
CLIENT_FIRST_CHUNK: Final = Instrument(
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    _OPERATION_EDGES_S,
    "From the request to the first chunk of its answer.",
)
CLIENT_PER_CHUNK: Final = Instrument(
    "gen_ai.client.operation.time_per_output_chunk",
    "s",
    _OPERATION_EDGES_S,
    "From one chunk of an answer to the next.",
)
SERVER_DURATION: Final = Instrument(
    "gen_ai.server.request.duration",
    "s",
    _OPERATION_EDGES_S,
    "From the request's arrival at the server to its last token.",
)
SERVER_PER_TOKEN: Final = Instrument(
    "gen_ai.server.time_per_output_token",
    "s",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    "Time per output token after the first, of successful answers.",
)
SERVER_FIRST_TOKEN: Final = Instrument(
    "gen_ai.server.time_to_first_token",
    "s",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    "From the request's arrival at the server to the first token, of successful answers.",
)

# vLLM's server, which the emulator writes too.
LLM_REQUEST: Final = "llm_request"
PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
REQUEST_ID: Final = "gen_ai.request.id"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
N_ANSWERS: Final = "gen_ai.request.n"
IN_QUEUE: Final = "gen_ai.latency.time_in_queue"
TO_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"  # noqa: S105
E2E: Final = "gen_ai.latency.e2e"
IN_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
IN_DECODE: Final = "gen_ai.latency.time_in_model_decode"
IN_INFERENCE: Final = "gen_ai.latency.time_in_model_inference"

# Own names, where the conventions have none.
RUN: Final = "inferometer.run"
RUN_ID: Final = "inferometer.run.id"
PHASE: Final = "inferometer.phase"
REQUEST_INDEX: Final = "inferometer.request.index"
SCHEDULE_DELAY: Final = "inferometer.schedule_delay"
FIRST_TOKEN: Final = "first_token"  # noqa: S105
LAST_TOKEN: Final = "last_token"  # noqa: S105
