"""A seal, and measurements of it, as tests need them."""

from inferometer.stats.estimate import Estimate
from inferometer.verify.claims import Measured, Measurement, spanned
from inferometer.verify.seals import Belief, Claim, CodeVersion, PromiseClaim, Question, Seal

SEALED_UTC = "2026-11-21T12:00:00+00:00"
LATER_UTC = "2026-11-21T12:00:01+00:00"
AT = "2 requests/s"


def estimate(value, low=None, high=None):
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=0.95,
        n_samples=100,
        method="order statistics",
    )


def seal(*claims, promised="met"):
    return Seal(
        experiment="x",
        kind="load",
        sealed_utc=SEALED_UTC,
        code=CodeVersion(version="0", git_commit=None),
        plan_sha256="",
        belief=Belief(basis="fitted", subject="m", rests_on="a fit", sha256=""),
        questions=(Question(at=AT, asks="100 requests", sha256=""),),
        claims=claims or (Claim(at=AT, metric="ttft_p50_s", predicted=spanned(2.0, [1.8, 2.4])),),
        promises=(PromiseClaim(at=AT, objective="ttft:p50<3s", predicted=promised),),
    )


def measurement(value, *, run_id="a", at_utc=LATER_UTC, validity="VALID", promise="met"):
    measured = Measured(
        at=AT, run_id=run_id, measured_utc=at_utc, asked_as="", validity=validity, why=None
    )
    return Measurement(measured=measured, values={"ttft_p50_s": value}, promise=promise)
