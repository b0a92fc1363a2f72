"""How is a function compiled? The one place that knows numba's options.

numba optimises each function together with all that it calls, and emits machine code for it, though
only what Python calls is ever run by itself: half of the compile time. Here the functions inside
are lowered to LLVM's language alone; an ``entry`` links what it calls, is optimised as a whole
once, and is cached beside its source. The cache holds as long as no source changes that
compiled code reaches.
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
    "forceinline": False,  # else all that an inlined function calls is inlined: six times the code
    # Nothing is allocated, so nothing is counted: counting references of the state's arrays took 95
    # % of the time.
    "_nrt": False,
}


class _Compiling(event.Listener):
    """Records compilations; nested ones count once."""

    def __init__(self) -> None:
        self._n_open = 0

    def on_start(self, event: object) -> None:
        """Something begins to be compiled."""
        del event
        if self._n_open == 0:
            hooks.compiling_begins()
        self._n_open += 1

    def on_end(self, event: object) -> None:
        """End of the compilation; nothing to do."""
        del event
        self._n_open -= 1
        if self._n_open == 0:
            hooks.compiling_ends()


event.register("numba:compile", _Compiling())


class _NoMachineCode:
    """Takes the environment of a function for which there is no machine code."""

    def set_env(self, name: str, env: object) -> None:
        """Do nothing: compiled functions raise no Python errors, so nothing needs it."""


class _Inside(codegen.JITCodeLibrary):
    """A function as LLVM's language, neither optimised nor emitted: for an entry to link."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """None, which numba writes as 0."""
        del name
        return 0

    def _optimize_functions(self, ll_module: Any) -> None:
        codegen: Any = self._codegen
        ll_module.data_layout = codegen._data_layout

    @property
    def codegen(self) -> Any:
        """The code generator, of which numba only sets an environment."""
        return _NoMachineCode()

    @property
    def callees(self) -> list[Any]:
        """The libraries of the functions that it calls."""
        return cast("list[Any]", self._linking_libraries)


class _Whole(codegen.JITCodeLibrary):
    """An entry function with all functions that it calls."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        self._linking_libraries = _with_callees(self._linking_libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        # The loops are over a handful of requests: vectorising them gains nothing.
        codegen: Any = self._codegen
        passes, builder = codegen._module_pass_manager(loop_vectorize=False, slp_vectorize=False)
        passes.run(self._final_module, builder)


def _with_callees(libraries: list[Any]) -> list[Any]:
    """These libraries and all that they call, each once, in order."""
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
    """Look up once which function an operator or a builtin calls for given types.

    numba asks again at each use, and tries dozens of candidates.
    """
    kinds: Any = types.BaseFunction
    look_up, known = kinds.get_call_type, dict[Any, Any]()

    def remembered(function: Any, context: Any, args: Any, kws: Any) -> Any:
        if function.typing_key in {min, max}:  # of each mixture of widths numba makes one more
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
    """Cache LLVM's type sizes, and pause garbage collection during a compilation."""
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


_FOR_OTHERS: Final = frozenset(
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
"""numba's passes over what the kernel has none of: closures, raised errors, array expressions."""


class _Passes(compiler_machinery.PassManager):
    """numba's passes, without its self-checks after each."""

    _ENFORCING = False


class _ShortCompiler(compiler.Compiler):
    """numba's own, with the passes that the kernel needs."""

    def define_pipelines(self) -> list[Any]:
        needed: Any = _Passes("simulator")
        (whole,) = super().define_pipelines()
        for step, why in whole.passes:
            if step.__name__ not in _FOR_OTHERS:
                needed.add_pass(step, why)
        needed.finalize()
        return [needed]


class _InsideCompiler(_ShortCompiler):
    """The same, but for the library into which a function is written."""

    def compile_extra(self, func: Callable[..., object]) -> Any:
        self.state.library = _Inside(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _EntryCompiler(_ShortCompiler):
    """As ``_InsideCompiler``, for functions that Python calls."""

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
    """The same function, compiled at its first call, for Python to call.

    It may write to arrays and allocate none.
    """
    made = _njit(**_OPTIONS, cache=True, no_cfunc_wrapper=True, pipeline_class=_EntryCompiler)(
        function
    )
    # numba's stamp is that of the function's own file: an edit of what it calls would go unnoticed.
    made._cache._cache_file._source_stamp = _sources_digest()
    # What is loaded is ready to run: numba would first import all that it may compile, for 0.3 s.
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
"""The modules of this room that ``kernel/`` imports: an edit of one of them compiles anew."""


@cache
def _sources_digest() -> str:
    """A digest of all sources that are compiled together."""
    room = resources.files("inferometer.simulate")
    files = [file for file in (room / "kernel").iterdir() if file.name.endswith(".py")]
    files += [room / f"{name}.py" for name in REACHED]
    files.append(resources.files("inferometer.perfmodel") / "steptime_arrays.py")
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda one: one.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def compiled(function: Function) -> Function:
    """The same for compiled code to call; Python gets a TypeError."""
    return _inside(function, inline=False)


def inlined(function: Function) -> Function:
    """As ``compiled``, but inlined into each caller: for work of every step."""
    return _inside(function, inline=True)


def _inside(function: Function, *, inline: bool) -> Function:
    made = _njit(**_INSIDE | {"forceinline": inline})(function)
    find = made.get_call_template

    def find_widest(args: Sequence[Any], kws: object) -> Any:
        return find([_widest(kind) for kind in args], kws)

    def add(found: Any) -> None:
        made.overloads[found.signature.args] = found

    made.get_call_template = find_widest
    # There is no machine code: known to numba's own code for calls, it would crash the process.
    made.add_overload, made._compile_for_args = add, _refuse
    return cast("Function", made)


def _widest(kind: Any) -> Any:
    """The widest integer type for all integers, so that a function is compiled only once."""
    if isinstance(kind, types.Literal):
        kind = kind.literal_type
    return types.int64 if isinstance(kind, types.Integer) else kind


def _refuse(*_args: object, **_kws: object) -> None:
    raise TypeError("only compiled code calls this function: kernel/loop.py has the entries")


def compiled_like(model: Any, function: Function) -> Function:
    """The function, compiled as ``model`` is."""
    if "no_cpython_wrapper" not in model.targetoptions:
        return entry(function)
    return _inside(function, inline=model.targetoptions["forceinline"])
