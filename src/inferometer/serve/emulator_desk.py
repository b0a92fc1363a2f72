"""What does a client's request mean to the engine, and what will be said to it?"""

import uuid
from datetime import UTC, datetime

from inferometer.serve.emulator_exchange import Served
from inferometer.serve.emulator_pages import CHAT_PATH
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_requests import Asked, Limits, read_chat, read_completion
from inferometer.serve.emulator_tokens import Answer, Tokenizer, content_ids, draw_answer
from inferometer.serve.emulator_wording import Wording
from inferometer.serve.fault_specs import Faults
from inferometer.serve.http_line import HttpRequest
from inferometer.simulate.reference.request import Request


class Desk:
    """Reads requests, for one plan."""

    def __init__(self, plan: EmulatorPlan) -> None:
        self.limits = Limits(plan.model_name, plan.config.max_model_len)
        self.tokenizer = Tokenizer(plan.tokenizer)
        self._plan = plan

    def take(self, request: HttpRequest, number: int, faults: Faults) -> Served:
        """What shall the engine do for this request, and what shall be said?

        Raises
        ------
        Refusal
            It cannot be served.
        """
        is_chat = request.path == CHAT_PATH
        asked = (read_chat if is_chat else read_completion)(request.body, self.limits, self.tokenizer)
        answer = self._answer(asked, number)
        client_id = request.headers.get("x-request-id", "")
        wording = Wording(
            reply_id=("chatcmpl-" if is_chat else "cmpl-") + (client_id or uuid.uuid4().hex),
            model_name=self._plan.model_name,
            created_s=int(datetime.now(UTC).timestamp()),
            is_chat=is_chat,
        )
        return Served(
            number=number,
            client_id=client_id,
            path=request.path,
            accepted_ns=request.accepted_ns,
            asked=asked,
            answer=answer,
            request=self._request(asked, answer, number, request.accepted_ns),
            faults=faults,
            wording=wording,
        )

    def _answer(self, asked: Asked, number: int) -> Answer:
        mean_tokens = None if asked.ignores_eos else self._plan.mean_output_tokens
        drawn = draw_answer(self.tokenizer.vocabulary, mean_tokens, asked.most_tokens, seed=self._plan.seed, number=number)
        answer = drawn._replace(n_tokens=max(drawn.n_tokens, min(asked.least_tokens, asked.most_tokens)))
        return answer.stopped_at(asked.stops, asked.least_tokens) if asked.stops else answer

    def _request(self, asked: Asked, answer: Answer, number: int, arrival_ns: int) -> Request:
        config = self._plan.config
        contents = list[int]()
        if config.enable_prefix_caching:
            contents = content_ids([*asked.tokens, *self.tokenizer.spoken(answer)], config.block_size)
        return Request(
            number,
            arrival_ns=arrival_ns,
            prompt=len(asked.tokens),
            stop=answer.n_tokens,
            max_tokens=asked.most_tokens,
            priority=asked.priority,
            contents=contents,
        )


__all__ = ["Desk"]
