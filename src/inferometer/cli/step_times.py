"""Which fit was named on the command line, and is it one of the server that is asked about?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferometer.cli.prediction import check_fit_of
from inferometer.errors import SpecError
from inferometer.fit.server_fit import is_server_fit
from inferometer.perfmodel import steptime_file
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.spec.types import ModelSpec


def asked_fit(path: Path, model: ModelSpec, *, asked: Mapping[str, Any]) -> StepTimeModel:
    """The fit at ``path``.

    Raises
    ------
    ModelError, SpecError
        The fit cannot be read; it is one of another model, format or number of devices than ``asked``.
    """
    if is_server_fit(path):
        what = "a fit of load tests says how a server answers, not how long a step of its model takes"
        raise SpecError(what, where=f"--fit {path}", allowed="a fit of a sweep", try_="simulate or capacity, which take it")
    fit = steptime_file.load_step_time_model(path)
    check_fit_of(fit, model)
    known = {
        "dtype": fit.engine.dtype,
        "kv_dtype": fit.engine.kv_cache_dtype or fit.engine.dtype,
        "tp": fit.engine.tensor_parallel_size,
        "quantization": fit.engine.quantization or "none",
    }
    for name, value in known.items():
        if asked.get(name) not in {None, value}:
            flag = f"--{name.replace('_', '-')}"
            raise SpecError(f"the fit is one of {flag} {value}, asked is {asked[name]}", where=f"--fit, {flag}", allowed=str(value))
    return fit


__all__ = ["asked_fit"]
