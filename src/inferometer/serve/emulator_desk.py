"""What does a client's request mean to the engine, and what will be said to it?"""

import uuid
from datetime import UTC, datetime
from typing import Final

from inferometer.serve import emulator_logprobs, fault_specs
from inferometer.serve.emulator_exchange import Choice, Served
from inferometer.serve.emulator_pages import CHAT_PATH
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_replies import Wording
from inferometer.serve.emulator_requests import Asked, Limits, read_chat, read_completion
from inferometer.serve.emulator_tokens import Answer, Tokenizer, content_ids, draw_answer
from inferometer.serve.http_line import HttpRequest
from inferometer.simulate.live import LiveRequest

CLASS_HEADER: Final = "x-gateway-inference-objective"
TENANT_HEADER: Final = "x-gateway-inference-fairness-id"
"""As the Gateway API Inference Extension has them."""


class Desk:
    """Reads requests, for one plan."""

    def __init__(self, plan: EmulatorPlan) -> None:
        self.limits = Limits(plan.model_name, plan.max_model_len)
        self.tokenizer = Tokenizer(plan.tokenizer)
        self._plan = plan
        self._n_choices = 0

    def take(self, request: HttpRequest, number: int, faults: fault_specs.Faults) -> Served:
        """What shall the engine do for this request, and what shall be said?

        Raises
        ------
        Refusal
            It cannot be served.
        """
        is_chat = request.path == CHAT_PATH
        asked = (read_chat if is_chat else read_completion)(
            request.body, self.limits, self.tokenizer
        )
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
            choices=tuple(
                self._choice(asked, place, number, request)
                for place in range(len(asked.prompts) * asked.n_choices)
            ),
            faults=faults,
            wording=wording,
            likelihoods=None
            if asked.n_top_logprobs is None
            else emulator_logprobs.Likelihoods(asked.n_top_logprobs, self.tokenizer.vocabulary),
        )

    def _choice(self, asked: Asked, place: int, number: int, request: HttpRequest) -> Choice:
        i_prompt, answer = place // asked.n_choices, self._answer(asked, number, place)
        engine_index = self._n_choices
        self._n_choices += 1
        echo = self.tokenizer.pieces(asked.prompts[i_prompt]) if asked.echoes else ()
        return Choice(
            place, answer, self._request(asked, i_prompt, answer, engine_index, request), echo
        )

    def _answer(self, asked: Asked, number: int, place: int) -> Answer:
        mean_tokens = None if asked.ignores_eos else self._plan.mean_output_tokens
        seed, vocabulary, most_tokens = (
            self._plan.seed,
            self.tokenizer.vocabulary,
            asked.most_tokens[place // asked.n_choices],
        )
        drawn = draw_answer(
            vocabulary, mean_tokens, most_tokens, seed=seed, number=number, place=place
        )
        answer = drawn._replace(n_tokens=max(drawn.n_tokens, min(asked.least_tokens, most_tokens)))
        if asked.is_silent:
            return answer._replace(n_chars=0)
        return (
            answer.stopped_at(asked.stops, asked.least_tokens, includes_stop=asked.includes_stop)
            if asked.stops
            else answer
        )

    def _request(
        self, asked: Asked, i_prompt: int, answer: Answer, engine_index: int, request: HttpRequest
    ) -> LiveRequest:
        config, prompt = self._plan.config, asked.prompts[i_prompt]
        contents = list[int]()
        if self._plan.fleet.has_contents:
            contents = content_ids([*prompt, *self.tokenizer.spoken(answer)], config.block_size)
        return LiveRequest(
            engine_index,
            arrival_ns=request.accepted_ns,
            prompt=len(prompt),
            stop=answer.n_tokens,
            max_tokens=asked.most_tokens[i_prompt],
            priority=asked.priority,
            contents=contents,
            kind=self._plan.kind_of(
                request.headers.get(CLASS_HEADER), request.headers.get(TENANT_HEADER)
            ),
        )
