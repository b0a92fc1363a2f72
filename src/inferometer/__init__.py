"""Inferometer: how fast is this model here, what limits it, what would it take, and was that true?

    import inferometer as im

    im.predict("llama-3.1-8b", hardware="h100_sxm", batch=32)
    im.simulate("llama-3.1-8b", hardware="h100_sxm", rate=5, slo="ttft:p95<500ms")

Each function is imported when it is first used, so that ``import inferometer`` is quick.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from inferometer.api.front import (
        capacity,
        catalog,
        compare,
        deploy,
        diagnose,
        doctor,
        engines,
        explain,
        explore,
        export,
        fit,
        import_results,
        ledger,
        load,
        predict,
        quality,
        quick,
        read,
        report,
        show,
        simulate,
        size,
        study,
        sweep,
        timeline,
        tune,
        verify,
        watch,
    )

__version__ = "0.3.0"

__all__ = [
    "__version__",
    "capacity",
    "catalog",
    "compare",
    "deploy",
    "diagnose",
    "doctor",
    "engines",
    "explain",
    "explore",
    "export",
    "fit",
    "import_results",
    "ledger",
    "load",
    "predict",
    "quality",
    "quick",
    "read",
    "report",
    "show",
    "simulate",
    "size",
    "study",
    "sweep",
    "timeline",
    "tune",
    "verify",
    "watch",
]

_DOOR: Final = "inferometer.api.front"


class _Function:
    """A function of the front door, as an attribute of this package.

    Some rooms have the name of a question: ``inferometer.fit`` is the function, and
    ``from inferometer.fit.map import …`` imports from the room. The import system binds a room to
    its name here when it is first imported; that is not done for these names.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, package: ModuleType, owner: type[ModuleType]) -> object:
        function: object = getattr(importlib.import_module(_DOOR), self._name)
        return function

    def __set__(self, package: ModuleType, value: object) -> None:
        if not isinstance(value, ModuleType):
            raise TypeError(f"{self._name} is a function of {package.__name__}")


def __dir__() -> list[str]:
    """The public names, so that a notebook completes ``inferometer.`` before any is imported."""
    return sorted(__all__)


sys.modules[__name__].__class__ = type(
    "Inferometer",
    (ModuleType,),
    {name: _Function(name) for name in __all__ if not name.startswith("_")},
)
