"""What is known about a run before it begins?"""

from inferometer import __version__
from inferometer.measure.ceilings import n_threads_used
from inferometer.measure.host import examine_machine, host_facts
from inferometer.measure.run_names import new_run_id, now_utc
from inferometer.records.types import EngineFacts, RunManifest
from inferometer.spec.types import ModelSpec, SweepPlan


def new_manifest(
    plan: SweepPlan,
    model: ModelSpec | None,
    command: tuple[str, ...],
    engine: EngineFacts | None = None,
) -> RunManifest:
    """The manifest of a run that begins now on this machine, with what is wrong with the machine in its cautions."""
    created_utc = now_utc()
    is_beginning = engine is not None
    return RunManifest(
        run_id=new_run_id(created_utc),
        origin="measured",
        created_utc=created_utc,
        command=command,
        tool_version=__version__,
        plan=plan,
        model=model,
        engine=engine,
        host=host_facts(
            n_threads=n_threads_used(plan.engine), uses_device=plan.engine.device == "cuda"
        ),
        source=None,
        # Our own engine, once it computes, is no caution: the machine is examined before.
        cautions=() if is_beginning else examine_machine(),
    )
