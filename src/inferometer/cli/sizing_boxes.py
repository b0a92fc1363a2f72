"""Which fits is a sizing about to ask about what they have not seen?"""

from inferometer.decide.candidates import Candidates
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import plan_at
from inferometer.perfmodel.steptime_box import outside
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.records.types import Caution


def box_cautions(question: SizingQuestion, candidates: Candidates) -> tuple[Caution, ...]:
    """Which fits are asked about lengths that they were not checked on?"""
    plan = plan_at(question.spec, question.rate_per_s, question.n_requests)
    tokens_in, tokens_out = round(plan.prompt_tokens.mean()), round(plan.output_tokens.mean())
    shapes = (
        prefill_shape(batch_size=1, prompt_tokens=tokens_in),
        decode_shape(batch_size=1, context_tokens=tokens_in + tokens_out // 2),
    )
    cautions = dict[str, Caution]()
    for candidate in candidates.possible:
        step_times = candidate.deployment.step_times
        reasons = [reason for shape in shapes for reason in outside(step_times.box, shape).reasons] if step_times.box else []
        if reasons:
            text = f"mean lengths of the traffic lie outside what was measured ({step_times.origin}): {'; '.join(dict.fromkeys(reasons))}"
            cautions[text] = Caution(code="FIT_BOX", text=text, remedy="a sweep or a load test of such lengths, and a fit to it")
    return tuple(cautions.values())


__all__ = ["box_cautions"]
