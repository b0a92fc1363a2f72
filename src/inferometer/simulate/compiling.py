"""Compilation of the simulator's functions with numba: its options, and a shorter pipeline.

numba by default optimises each function together with all functions that it calls, and emits
machine code for each. Since Python calls only the event loops, this takes twice the time that is
needed. Here an inner function (``compiled``, ``inlined``) is only lowered to LLVM's intermediate
representation. A function that Python calls (``entry``) links all inner functions, is optimised as
a whole once, and is cached beside its source. The cache is valid until a source file changes that
compiled code depends on.
"""

import gc
import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, Final, TypeVar, cast

import numba
from numba.core import codegen, compiler, compiler_machinery, cpu, event, types

from inferometer.simulate import hooks

Function = TypeVar("Function", bound=Callable[..., object])

_njit: Final[Any] = numba.njit
_OPTIONS: Final[dict[str, Any]] = {
    "fastmath": False,  # floats keep their order, so that results do not depend on the processor
    "error_model": "python",
    "nogil": True,  # threads run simulations side by side
    # If True, all functions that an inlined function calls are inlined too: six times the code.
    "forceinline": False,
    # No reference counting: kernels allocate nothing, and counting took 95 % of the run time.
    "_nrt": False,
}


class _Compiling(event.Listener):
    """Calls the hooks at the begin and end of each compilation; nested ones count once."""

    def __init__(self) -> None:
        self._n_open = 0

    def on_start(self, event: object) -> None:
        """Call the hooks if this compilation is not inside another one."""
        del event
        if self._n_open == 0:
            hooks.compiling_begins()
        self._n_open += 1

    def on_end(self, event: object) -> None:
        """Call the hooks if this was the outermost compilation."""
        del event
        self._n_open -= 1
        if self._n_open == 0:
            hooks.compiling_ends()


event.register("numba:compile", _Compiling())


class _NoMachineCode:
    """Stand-in for the code generator of a function that has no machine code."""

    def set_env(self, name: str, env: object) -> None:
        """Do nothing: compiled functions raise no Python errors, so nothing needs it."""


class _Inside(codegen.JITCodeLibrary):
    """An inner function as LLVM's intermediate representation, for an entry function to link.

    It is neither optimised nor emitted as machine code.
    """

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """0: there is no machine code to point to."""
        del name
        return 0

    def _optimize_functions(self, ll_module: Any) -> None:
        codegen: Any = self._codegen
        ll_module.data_layout = codegen._data_layout

    @property
    def codegen(self) -> Any:
        """A stand-in: numba only calls its ``set_env``."""
        return _NoMachineCode()

    @property
    def callees(self) -> list[Any]:
        """The libraries of the functions that this function calls."""
        return cast("list[Any]", self._linking_libraries)


class _Whole(codegen.JITCodeLibrary):
    """An entry function, linked with all functions that it calls, directly or not."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        self._linking_libraries = _with_callees(self._linking_libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        # The loops are over a few requests: vectorising them gains nothing.
        codegen: Any = self._codegen
        passes, builder = codegen._module_pass_manager(loop_vectorize=False, slp_vectorize=False)
        passes.run(self._final_module, builder)


def _with_callees(libraries: list[Any]) -> list[Any]:
    """These libraries and those of all functions that they call, each once."""
    found: dict[int, Any] = {}
    waiting = list(libraries)
    while waiting:
        library = waiting.pop(0)
        if id(library) not in found:
            found[id(library)] = library
            waiting += library.callees if isinstance(library, _Inside) else []
    return list(found.values())


@contextmanager
def _remembered_types() -> Generator[None]:
    """Within this context, resolve each overload of an operator or builtin only once.

    numba resolves the overload again at each use, and tries dozens of candidates.
    """
    kinds: Any = types.BaseFunction
    look_up, known = kinds.get_call_type, dict[Any, Any]()

    def remembered(function: Any, context: Any, args: Any, kws: Any) -> Any:
        if function.typing_key in {min, max}:  # one overload, not one for each mix of widths
            args = tuple(_widest(kind) for kind in args)
        key = function, tuple(args), tuple(kws.items())
        if key not in known:
            known[key] = look_up(function, context, args, kws)
        return known[key]

    kinds.get_call_type = remembered
    try:
        yield
    finally:
        kinds.get_call_type = look_up


@contextmanager
def _quickly() -> Generator[None]:
    """Within this context, cache LLVM's type sizes, and pause garbage collection."""
    kinds: Any = cpu.CPUContext
    size, collects = kinds.get_abi_sizeof, gc.isenabled()
    sizes_bytes = dict[Any, int]()

    def size_bytes(self: Any, kind: Any) -> int:
        if kind not in sizes_bytes:
            sizes_bytes[kind] = size(self, kind)
        return sizes_bytes[kind]

    kinds.get_abi_sizeof = size_bytes
    gc.disable()
    try:
        yield
    finally:
        kinds.get_abi_sizeof = size
        if collects:
            gc.enable()


_UNUSED_PASSES: Final = frozenset(
    {
        "WithLifting",
        "InlineClosureLikes",
        "RewriteDynamicRaises",
        "MakeFunctionToJitFunction",
        "InlineInlinables",
        "FindLiterallyCalls",
        "LiteralUnroll",
        "LiteralPropagationSubPipelinePass",
        "InlineOverloads",
        "NopythonRewrites",
        "NoPythonSupportedFeatureValidation",
        "DumpParforDiagnostics",
    }
)
"""numba's passes for language features that the kernel does not use.

Such as closures, raised exceptions and array expressions.
"""


class _Passes(compiler_machinery.PassManager):
    """numba's pass manager, without its self-checks after each pass."""

    _ENFORCING = False


class _ShortCompiler(compiler.Compiler):
    """numba's compiler, with only the passes that the kernel needs."""

    def define_pipelines(self) -> list[Any]:
        needed: Any = _Passes("simulator")
        (whole,) = super().define_pipelines()
        for step, why in whole.passes:
            if step.__name__ not in _UNUSED_PASSES:
                needed.add_pass(step, why)
        needed.finalize()
        return [needed]


class _InsideCompiler(_ShortCompiler):
    """Compiler of inner functions, which writes them to ``_Inside`` libraries."""

    def compile_extra(self, func: Callable[..., object]) -> Any:
        self.state.library = _Inside(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _EntryCompiler(_ShortCompiler):
    """Compiler of entry functions, which writes them to ``_Whole`` libraries."""

    def compile_extra(self, func: Callable[..., object]) -> Any:
        self.state.library = _Whole(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.enable_object_caching()
        with _remembered_types(), _quickly():
            return super().compile_extra(func)


_INSIDE: Final[dict[str, Any]] = {
    **_OPTIONS,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": _InsideCompiler,
}


def entry(function: Function) -> Function:
    """Decorator: compile a function that Python calls, at its first call, and cache it.

    The function may write to arrays, but allocates none.
    """
    made = _njit(**_OPTIONS, cache=True, no_cfunc_wrapper=True, pipeline_class=_EntryCompiler)(
        function
    )
    # numba stamps the cache with the function's own file: it would miss edits of called functions.
    made._cache._cache_file._source_stamp = _sources_digest()
    # A cached function is ready to run; numba would first import its compiler, for 0.3 s.
    made._cache.load_overload = made._cache._load_overload
    return cast("Function", made)


REACHED: Final = (
    "batch_config",
    "compiling",
    "demand",
    "engine_config",
    "fleet",
    "gate_config",
    "hooks",
    "outcome",
    "pointers",
    "scheduler_config",
    "sglang_config",
    "step_cost",
    "trtllm_config",
)
"""Modules of ``simulate`` that ``kernel/`` imports: editing one of them invalidates the cache."""


@cache
def _sources_digest() -> str:
    """A digest of all source files that compiled code depends on."""
    room = resources.files("inferometer.simulate")
    files = [file for file in (room / "kernel").iterdir() if file.name.endswith(".py")]
    files += [room / f"{name}.py" for name in REACHED]
    files.append(resources.files("inferometer.perfmodel") / "steptime_terms.py")
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda one: one.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def compiled(function: Function) -> Function:
    """Decorator: compile a function that compiled code calls; a call from Python is a TypeError."""
    return _inside(function, inline=False)


def inlined(function: Function) -> Function:
    """Decorator: as ``compiled``, but inlined into each caller, for functions of every step."""
    return _inside(function, inline=True)


def _inside(function: Function, *, inline: bool) -> Function:
    made = _njit(**_INSIDE | {"forceinline": inline})(function)
    find = made.get_call_template

    def find_widest(args: Sequence[Any], kws: object) -> Any:
        return find([_widest(kind) for kind in args], kws)

    def add(found: Any) -> None:
        made.overloads[found.signature.args] = found

    made.get_call_template = find_widest
    # There is no machine code: if numba's dispatcher could call it, the process would crash.
    made.add_overload, made._compile_for_args = add, _refuse
    return cast("Function", made)


def _widest(kind: Any) -> Any:
    """int64 for all integer types, so that a function is compiled only once; others unchanged."""
    if isinstance(kind, types.Literal):
        kind = kind.literal_type
    return types.int64 if isinstance(kind, types.Integer) else kind


def _refuse(*_args: object, **_kws: object) -> None:
    raise TypeError("only compiled code calls this function: kernel/loop.py has the entries")


def compiled_like(model: Any, function: Function) -> Function:
    """Compile a function as ``model``: by ``entry``, ``compiled`` or ``inlined``."""
    if "no_cpython_wrapper" not in model.targetoptions:
        return entry(function)
    return _inside(function, inline=model.targetoptions["forceinline"])
