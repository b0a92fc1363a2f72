"""Under which names do spans say what happened to a request, ours and those of servers?

All names of OpenTelemetry's GenAI conventions that this program writes or reads stand here: the
conventions are in development, and a name that changes changes in this file only.

Source
------
open-telemetry/semantic-conventions-genai, docs/gen-ai (state of November 2026, all in development);
vLLM 0.32.0, vllm/tracing/utils.py, whose names for token counts are older ones.
"""

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.43.0"
"""Of the conventions whose names the load client writes."""

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
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
"""Which interface is spoken: the conventions mean the client's view, whoever serves."""

# vLLM's server, which the emulator writes too.
LLM_REQUEST: Final = "llm_request"
PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
REQUEST_ID: Final = "gen_ai.request.id"
IN_QUEUE: Final = "gen_ai.latency.time_in_queue"
TO_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"  # noqa: S105
E2E: Final = "gen_ai.latency.e2e"
IN_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
IN_DECODE: Final = "gen_ai.latency.time_in_model_decode"
IN_INFERENCE: Final = "gen_ai.latency.time_in_model_inference"

# Ours, where the conventions have no name.
RUN: Final = "inferometer.run"
RUN_ID: Final = "inferometer.run.id"
PHASE: Final = "inferometer.phase"
REQUEST_INDEX: Final = "inferometer.request.index"
SCHEDULE_DELAY: Final = "inferometer.schedule_delay"
FIRST_TOKEN: Final = "first_token"  # noqa: S105
LAST_TOKEN: Final = "last_token"  # noqa: S105
