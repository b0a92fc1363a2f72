"""Which spans does an emulated server send of its requests: those of vLLM.

Source
------
vLLM 0.32.0, v1/engine/output_processor.py, ``do_tracing``: one span for each answer that came to
its end; a client that does not want its request traced is obeyed.
"""

import time
import uuid
from typing import Final

from inferometer.inputs import span_names as names
from inferometer.inputs.otlp_spans import Span
from inferometer.inputs.span_ids import TraceParent
from inferometer.measure.otlp import SpanStream
from inferometer.serve.emulator_exchange import Choice, Served
from inferometer.units import s_from_ns

_MASK: Final = 2**64 - 1


class ServerSpans:
    """Sends a span of each answer that has ended.

    Raises
    ------
    SpecError
        OpenTelemetry's SDK is not installed, or the endpoint is no URL.
    """

    def __init__(self, endpoint: str) -> None:
        self._stream = SpanStream(endpoint, "inferometer emulate")
        self._wall_ns = time.time_ns() - time.perf_counter_ns()
        """What the wall clock shows where the engine's clock shows 0."""

    def answered(self, served: Served, choice: Choice) -> None:
        """An answer had its last token."""
        parent = served.traced_by
        if parent is None:
            parent = TraceParent(uuid.uuid4().int, 0, is_sampled=True)
        if parent.is_sampled:
            self._stream.add(server_span(served, choice, parent, wall_ns=self._wall_ns))

    def close(self) -> None:
        """Send what waits."""
        self._stream.close()


def server_span(served: Served, choice: Choice, parent: TraceParent, *, wall_ns: int) -> Span:
    """The span of an answer, its end that of its last token."""
    request = choice.request
    instants_ns = (request.arrival_ns, request.admitted_ns, choice.first_ns, choice.last_ns)
    arrival_ns, admitted_ns, first_ns, last_ns = instants_ns
    return Span(
        trace_id=parent.trace_id,
        span_id=(uuid.uuid4().int & _MASK) or 1,
        parent_id=parent.span_id or None,
        name=names.LLM_REQUEST,
        kind="server",
        start_ns=arrival_ns + wall_ns,
        end_ns=last_ns + wall_ns,
        attributes={
            names.TO_FIRST_TOKEN: s_from_ns(first_ns - arrival_ns),
            names.E2E: s_from_ns(last_ns - arrival_ns),
            names.IN_QUEUE: s_from_ns(admitted_ns - arrival_ns),
            names.IN_PREFILL: s_from_ns(first_ns - admitted_ns),
            names.IN_DECODE: s_from_ns(last_ns - first_ns),
            names.IN_INFERENCE: s_from_ns(last_ns - admitted_ns),
            names.PROMPT_TOKENS: request.num_prompt_tokens,
            names.COMPLETION_TOKENS: request.num_output_tokens,
            names.MAX_TOKENS: request.max_tokens,
            names.REQUEST_ID: served.reply_id,
        },
    )
