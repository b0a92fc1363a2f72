"""What does a workload ask for: lengths, their joint distribution, arrivals, sharing, and texts?"""

from dataclasses import dataclass
from pathlib import Path

from inferometer.api.workload import Workload, workload_of
from inferometer.errors import SpecError
from inferometer.inputs.workload import description, trace_formats, traces, types
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.trace_texts import estimated_tokens, text_of_parts
from inferometer.measure.load.local_tokenizer import token_pace
from inferometer.records.types import Caution
from inferometer.report.page import Page
from inferometer.report.tables import TextTable
from inferometer.units import format_duration, format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerCount:
    """What one tokenizer makes of the texts, and how long it takes on this machine."""

    tokenizer: str
    tokens: int
    encode_s: float
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSummary:
    """How much text is it, in units that no tokenizer changes?"""

    n_texts: int
    characters: int
    words: int
    """Between spaces."""
    estimated_tokens: int
    """One for each four characters begun: what lengths of this trace rest on."""
    counts: tuple[TokenizerCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogWorkload:
    """A workload in numbers; texts only where its file holds some."""

    name: str
    note: str | None
    plan: description.PlanDescription
    joint: description.JointLengths
    cacheable_fraction: float
    """Of prompt tokens: hits of an endless prefix cache in blocks of 16."""
    texts: TextSummary | None
    cautions: tuple[Caution, ...]


def describe_workload(name: str, tokenizers: tuple[str, ...]) -> CatalogWorkload:
    """The workload of this name, file or lengths; 2,000 requests of one that has no end.

    Raises
    ------
    SpecError
        There is none, its file cannot be read, or tokenizers are given and it holds no texts.
    """
    spec = workload_of(Workload(workload=name))
    if _kind(spec) in traces.WITH_TEXTS:  # they say nothing of when requests come
        spec = workload_of(Workload(workload=name, concurrency=1))
    drawn = draw_workload(spec)
    return CatalogWorkload(
        name=drawn.name,
        note=spec.note,
        plan=description.describe(drawn.plan),
        joint=description.joint_lengths(drawn.plan),
        cacheable_fraction=description.cacheable_fraction(drawn.plan),
        texts=_texts(spec, tokenizers),
        cautions=tuple(
            Caution(code=one.code, text=one.text, remedy=one.remedy) for one in drawn.cautions
        ),
    )


def _kind(spec: types.WorkloadSpec) -> types.TraceFormat | None:
    source = spec.replay
    if not isinstance(source, types.TraceSource):
        return None
    return source.format or trace_formats.detect_format(Path(source.path))


def _texts(spec: types.WorkloadSpec, tokenizers: tuple[str, ...]) -> TextSummary | None:
    source = spec.replay
    if not isinstance(source, types.TraceSource) or _kind(spec) not in traces.WITH_TEXTS:
        if tokenizers:
            raise SpecError(
                f"workload {spec.name!r} holds no texts",
                where="--tokenizer",
                allowed=f"traces with texts: {', '.join(traces.WITH_TEXTS)}",
            )
        return None
    texts = [text_of_parts(one.content) for said in traces.read_texts(source) for one in said]
    paces = [(path, token_pace(path, texts)) for path in tokenizers]
    return TextSummary(
        n_texts=len(texts),
        characters=sum(map(len, texts)),
        words=sum(len(text.split()) for text in texts),
        estimated_tokens=sum(map(estimated_tokens, texts)),
        counts=tuple(
            TokenizerCount(
                tokenizer=path,
                tokens=pace.n_tokens,
                encode_s=pace.encode_s,
                decode_s=pace.decode_s,
            )
            for path, pace in paces
        ),
    )


def workload_list(entries: tuple[CatalogWorkload, ...]) -> Page:
    """A row for each preset."""
    rows = [
        (
            one.name,
            *(f"{side.p50_tokens:,.0f} / {side.p99_tokens:,.0f}" for side in _sides(one)),
            _rate(one),
            f"{one.cacheable_fraction:.0%}",
        )
        for one in entries
    ]
    header = ("workload", "prompt p50 / p99", "output p50 / p99", "requests/s", "cacheable")
    table = TextTable(caption="", header=header, rows=tuple(rows))
    return Page(title=f"{len(rows)} workloads are built in", table=table)


def _sides(one: CatalogWorkload) -> tuple[description.LengthSummary, description.LengthSummary]:
    return one.plan.prompt, one.plan.output


def _rate(one: CatalogWorkload) -> str:
    rate = one.plan.rate_per_s
    return "none of its own" if rate is None else format_number(rate)


def workload_page(one: CatalogWorkload) -> Page:
    """All that is known of a single one."""
    plan = one.plan
    rows = [
        *(
            (
                side,
                (
                    f"mean {of.mean_tokens:,.0f}, p50 {of.p50_tokens:,.0f}, p90"
                    f" {of.p90_tokens:,.0f}, p99 {of.p99_tokens:,.0f}, most {of.max_tokens:,} tokens"
                ),
            )
            for side, of in zip(("prompts", "outputs"), _sides(one), strict=True)
        ),
        ("joint", _correlation(one.joint)),
        *(
            (
                f"prompts of {quarter.from_tokens:,} to {quarter.to_tokens:,}",
                (
                    f"outputs p50 {quarter.output_p50_tokens:,.0f}, p90"
                    f" {quarter.output_p90_tokens:,.0f}"
                ),
            )
            for quarter in one.joint.quarters
        ),
        ("arrivals", _arrivals(plan)),
        ("burstiness", _burstiness(plan)),
        (
            "sharing",
            (
                f"{plan.n_sessions:,} sessions, {plan.n_followers:,} requests follow another;"
                f" {plan.shared_prefix_fraction:.1%} of prompt tokens came before"
            ),
        ),
        (
            "cacheable",
            (
                f"{one.cacheable_fraction:.1%} of prompt tokens, by an endless prefix cache in"
                " blocks of 16"
            ),
        ),
        *(() if one.texts is None else _text_rows(one.texts)),
    ]
    return Page(
        title=f"{one.name}: {plan.n_requests:,} requests of {plan.n_classes} classes and"
        f" {plan.n_tenants} tenants",
        subtitle=one.note or "",
        table=TextTable(caption="", header=("", "value"), rows=tuple(rows)),
        cautions=one.cautions,
    )


def _correlation(joint: description.JointLengths) -> str:
    found = joint.rank_correlation_ratio
    if found is None:
        return "no correlation: one of the lengths is always the same"
    return f"rank correlation of prompt and output {found:.2f}"


def _arrivals(plan: description.PlanDescription) -> str:
    if plan.rate_per_s is None:
        return "all at once, or of users who wait for their answers"
    return f"{format_number(plan.rate_per_s)} requests/s over {format_duration(plan.span_s)}"


def _burstiness(plan: description.PlanDescription) -> str:
    cv, low, high = plan.gap_cv_ratio, plan.gap_cv_low_ratio, plan.gap_cv_high_ratio
    if cv is None or low is None or high is None:
        return "not known: fewer than 20 gaps, or none"
    shape = "as a metronome" if cv < 0.05 else f"--burstiness {1 / cv**2:.2g}"
    return f"gaps vary by {cv:.2f} [{low:.2f}, {high:.2f}] of their mean (Poisson: 1; {shape})"


def _text_rows(texts: TextSummary) -> list[tuple[str, str]]:
    rows = [
        (
            "texts",
            (
                f"{texts.n_texts:,} of {texts.characters:,} characters, {texts.words:,} words;"
                f" about {texts.estimated_tokens:,} tokens at 4 characters each"
            ),
        )
    ]
    rows += [
        (
            f"by {one.tokenizer}",
            (
                f"{one.tokens:,} tokens: {texts.characters / one.tokens:.2f} characters,"
                f" {texts.words / one.tokens:.2f} words each;"
                f" tokenised in {format_duration(one.encode_s / one.tokens * 1000)} and"
                f" detokenised in {format_duration(one.decode_s / one.tokens * 1000)} per 1,000"
            ),
        )
        for one in texts.counts
        if one.tokens
    ]
    return rows
