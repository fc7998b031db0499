# SPDX-License-Identifier: Apache-2.0
"""Controls how Dynamo captures frames for this package's backend, and how a frame runs if its capture fails.

After a failed capture the frame runs in eager for this call, so that the user's own error comes from the user's line
with eager's type. The next call is captured again.
"""

import contextlib
import functools
import logging
import re
import threading
from unittest import mock

from caesura.capture.compat import (BRANCHING, CLONE, CONTEXT, CREATED_AT, DATA_DEPENDENT, EXPLANATION, GUARD_FAILED, HINT,
                                    META_FAILED, OBSERVED, TOLIST, BackendCompilerFailed, ConvertFrameReturn, FrameAction,
                                    FrameExecStrategy, GuardBuilder, GuardOnDataDependentSymNode, OutputGraph, TorchRuntimeError,
                                    Unsupported, UserError, backend_of, convert_frame, dynamo_config, global_hooks,
                                    graph_break_hints, guards, is_one_graph, symbolic_convert)
from caesura.capture.decompositions import corrected
from caesura.capture.patches import Shared
from caesura.reports import StrictError, ended_well, fall_back, fall_back_if_it_ends_well
from caesura.user_code import FRAME, calling_line, is_package, is_users

# Dynamo's code has no marks for profilers, which are branches since PyTorch 2.15: bytecode.is_plain() allows none.
UNMARKED = {"record_runtime_overhead": False}
_TRIALS = 3  # captures of one frame that may fail, after which it is not tried again
_FAILED = "caesura: failed captures"  # a key of dynamo's state of a frame: [how often, what is told of it]
_USERS = graph_break_hints.USER_ERROR[0]  # among the hints of a graph break that eager most likely ends at

_backends = []  # (function that torch.compile takes, whether a frame that it cannot capture runs in eager)


class OptionError(ValueError):
    """torch.compile() was given options that the backend does not have."""


class NotCaptured(Exception):
    """A frame that no capture fits came up while no_capture() forbade new ones."""


def no_capture():
    """For tracing(): a call within it runs what was captured before, or raises NotCaptured."""
    raise NotCaptured


class _Local(threading.local):
    patches = None  # makes the context that a trace in this thread happens in; None: as for code that is not ours
    others = contextlib.nullcontext  # the same for code that is not ours


_local = _Local()


def watch(backend, *, runs_eager: bool) -> None:
    """Frames that are captured for `backend`, a function or method that torch.compile takes, are ours.

    runs_eager: whether a frame that cannot be captured runs in eager. Otherwise the error is the caller's.
    """
    _backends.append((backend, runs_eager))


def _runs_eager(compiler):
    """The `runs_eager` that watch() was given for a backend of ours; None for all other backends."""
    function = getattr(compiler, "compiler_fn", None)
    function = getattr(function, "__func__", function)  # of a method
    return next((runs_eager for backend, runs_eager in _backends if backend is function), None)


def is_users_error(error) -> bool:
    """True if the forward itself most likely fails with the error that ended its trace."""
    if isinstance(error, Unsupported):
        return (getattr(error, "gb_type", None) or "").startswith(OBSERVED) or _USERS in str(error)
    return isinstance(error, (TorchRuntimeError, IndexError, AssertionError))


def first_line(error) -> str:
    """The error's type and first line, without what dynamo puts around it."""
    if isinstance(error, BackendCompilerFailed):
        error = error.inner_exception
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(EXPLANATION)), None)  # of TorchRuntimeError
    return f"{type(error).__name__}: {told.removeprefix(EXPLANATION) if told else lines[0] if lines else ''}"


ELEMENTS_SHARE = "it writes to a tensor whose elements share memory, as those of unfold() do: clone it first"
HOOKS_WITHIN = "PyTorch would call the hooks of all modules for the graphs within a graph, too (branches, loops, checkpoints)"
# A part of PyTorch's message about a failed capture, and our text instead: what the line does, and what to write.
_READ_AS = {
    "pad_packed_sequence": "packed sequences that the forward did not pack: hand it the padded tensor and the lengths, and pack them in it",
    BRANCHING: "a Python branch over a tensor's value: write torch.where or torch.cond, or decide outside of the module",
    DATA_DEPENDENT: "a Python loop, branch or size that depends on a tensor's value: write it in tensors (torch.where, a mask), or "
                    "compute it outside of the module and hand it over",
    "aten._nested_tensor_from_tensor_list": "attention over jagged nested tensors: pad them by torch.nested.to_padded_tensor(), and "
                                            "mask the scores",
    "mutation on a view chain": "it writes to a view of what as_strided() gives: write to that tensor, or clone it first",
    "This view is the output of a function that returns multiple views": "it writes to one of the parts of split(), unbind() or chunk(): "
                                                                          "clone that part first",
    "internal overlap": ELEMENTS_SHARE,
    "view was created inside a custom Function": "it writes to a view of what an autograd.Function or a loop gives: "
                                                  "clone that first",
    "is None when lifting it to input": "a checkpoint or branch over the result of a loop, whose strides no trace knows: call it "
                                        "outside of the checkpoint",
    "Cannot view a tensor with shape": "it writes to a view whose memory lies in another order: write to a copy of it, by clone()",
    TOLIST: "numbers are read off a tensor: compute with the tensor, or read them outside of the module",
}


def _known(text):
    return next((told for sign, told in _READ_AS.items() if sign in text), None)


def is_known(error) -> bool:
    """True if an error of PyTorch's says what the forward does that no capture takes. Other errors nobody foresaw."""
    return isinstance(error, (Unsupported, UserError, GuardOnDataDependentSymNode)) or _known(str(error)) is not None


def _named(name, error) -> str:
    """What a user is told of a failed capture: PyTorch's name for it, and what to write instead where that is known."""
    told = _known(str(error))
    return f"{name}: {told}" if told and told != name else name


def why(error) -> str:
    """One line that says what Dynamo cannot trace."""
    text = str(error)
    told = _known(text)
    explained = re.search(f"^  {EXPLANATION}(.+?)^  ({HINT}|{CONTEXT})", text, re.MULTILINE | re.DOTALL)
    if told is None and explained is not None and getattr(error, "gb_type", None):
        context = re.search(f"^  {CONTEXT}(.+)$", text, re.MULTILINE)  # names the operator where nothing is explained
        told = f"{error.gb_type}: {' '.join(explained[1].split()) or (context[1] if context else '')}"
    return told or first_line(error)


def place_of(error) -> str:
    """The user's line that was traced last."""
    frames = [(f.filename, f.lineno, f.name) for f in getattr(error, "real_stack", None) or () if is_users(f.filename)]
    frames = frames or [found for found in FRAME.findall(str(error)) if is_users(found[0])] or [calling_line()]
    return "{}:{} in {}".format(*frames[-1])


@contextlib.contextmanager
def quietly():
    """Keeps errors of the trace out of PyTorch's log, because the caller reports them."""
    logs = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch._guards")]
    for log in logs:
        log.addFilter(_is_no_failure)
    try:
        yield
    finally:
        for log in logs:
            log.removeFilter(_is_no_failure)


def _is_no_failure(record) -> bool:
    return not str(record.msg).startswith((META_FAILED, GUARD_FAILED, CREATED_AT))


_convert = convert_frame.ConvertFrameAssert.__call__


def _convert_or_run(self, frame, cache_entry, hooks, frame_state, *, skip=0):
    """Lets Dynamo capture one frame; if that fails, the frame and all that it calls run in eager."""
    runs_eager, is_ours = _runs_eager(backend_of(self)), is_package(frame.f_code.co_filename)
    if runs_eager is None:
        return _convert(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
    if not runs_eager:
        with _trace(is_ours):
            return _convert(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
    failed = frame_state.setdefault(_FAILED, [0, None])
    if failed[0] < _TRIALS:
        try:
            with quietly(), _trace(is_ours):
                try:
                    return _convert(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
                except Exception as error:
                    if is_one_graph(self) or not dynamo_config.capture_dynamic_output_shape_ops or not _depends_on_values(error):
                        raise
                    # Graphs end where a size comes up that no trace knows.
                    with dynamo_config.patch(capture_dynamic_output_shape_ops=False):
                        return _convert(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
        except Exception as error:
            if is_one_graph(self) or _ends_the_call(error):
                raise
            logging.getLogger("caesura").info("a capture failed", exc_info=True)
            is_limit = getattr(error, "frame_exec_strategy", None) is not None
            told = ("it was captured too often, each time for other inputs" if is_limit else
                    _named(f"its capture fails: {first_line(error)}", error))
            problem = ("a call", told, place_of(error))
            by_user = is_users_error(error) and place_of(error) not in ended_well
            if not by_user:
                failed[:] = _TRIALS if is_limit else failed[0] + 1, problem
            fall_back_if_it_ends_well(problem, by_user)
    else:
        fall_back_if_it_ends_well(failed[1], False)
    return ConvertFrameReturn(frame_exec_strategy=FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP), apply_to_code=False,
                              skip_reason="its capture has failed")


def _depends_on_values(error) -> bool:
    """True if a trace ended because it needs a size or number that is known only at run time."""
    error = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
    return isinstance(error, GuardOnDataDependentSymNode) or DATA_DEPENDENT in str(error)


def _ends_the_call(error) -> bool:
    """Graph breaks are dynamo's to go on from; what forbids eager, or is a mistake in torch.compile()'s arguments, is told."""
    if isinstance(error, BackendCompilerFailed):
        return isinstance(error.inner_exception, (StrictError, OptionError))
    if isinstance(error, Unsupported):
        return not is_users_error(error) and error.frame_exec_strategy is None
    # Dynamo wraps an error that our own functions raise within a trace.
    return isinstance(error, (UserError, StrictError)) or isinstance(error.__context__, StrictError)


_clone = getattr(convert_frame.ConvertFrame, CLONE)


def _stay_whole(self):
    """Under DistributedDataParallel dynamo would cut the graph where its buckets end, and hand over pieces without memory."""
    return (lambda backend: self) if _runs_eager(backend_of(self)) else _clone.fget(self)


_funcname = symbolic_convert.get_funcname


def _funcname_if_logged(filename, lineno):
    """The name for a line of dynamo's log, which dynamo tokenizes whole source files for (0.5 s of a Llama's capture) even
    where it logs nothing."""
    return _funcname(filename, lineno) if symbolic_convert.trace_call_log.isEnabledFor(logging.DEBUG) else None


_time_of_guards = guards.profile_guard_manager


def _time_of_guards_if_logged(manager, frame, runs):
    """How long a frame's guards take, for dynamo's log. Dynamo flushes the CPU's caches for it, which takes 60 ms a capture."""
    return _time_of_guards(manager, frame, runs) if guards.guards_log.isEnabledFor(logging.DEBUG) else 0.0


_global_state = GuardBuilder.GLOBAL_STATE


@functools.wraps(_global_state)
def _global_state_and_hooks(builder, guard):
    """Guards the hooks of all modules, too: dynamo guards them in a frame that begins with a call of a module, not in those after a
    graph break."""
    _global_state(builder, guard)
    dicts = global_hooks()
    known = [list(hooks) for hooks in dicts]  # their numbers, which are not given again
    builder.guard_manager.root.add_lambda_guard(lambda _: known == [list(hooks) for hooks in dicts], ["the hooks of all modules"],
                                                guard.user_stack)


_remove_inputs = OutputGraph.remove_tensorify_specialized_graphargs


def _remove_inputs_only(output):
    """Dynamo removes inputs that are read as numbers only. It would also remove calls that write to such a tensor and that nothing
    reads, because a number was once known for what they give."""
    calls = [node for node in output.graph.nodes if node.op != "placeholder" and "example_value" in node.meta]
    values = [node.meta.pop("example_value") for node in calls]
    _remove_inputs(output)
    for node, value in zip(calls, values):
        node.meta["example_value"] = value


_log_graph_break = symbolic_convert.InstructionTranslatorBase.log_graph_break


def _tell_of_graph_break(translator, *arguments, **named):
    """Before dynamo logs it, for those who have asked for that log: what follows runs in eager, up to the next graph."""
    exc = next((a for a in (*arguments, *named.values()) if isinstance(a, Exception)), None)
    if _runs_eager(translator.output.compiler_fn) and exc is not None and not getattr(exc, "logged", False):
        stack = getattr(exc, "real_stack", None) or [translator.frame_summary()]
        cause = _named(getattr(exc, "gb_type", None) or why(exc), exc)
        own = TorchRuntimeError(str(exc))
        own.real_stack = stack
        if is_users_error(exc) and place_of(own) not in ended_well:  # no place to go on from: the frame's capture ends
            raise own
        fall_back([("a graph break", cause, f"{stack[-1].filename}:{stack[-1].lineno} in {stack[-1].name}")])
    _log_graph_break(translator, *arguments, **named)


@contextlib.contextmanager
def _trace(is_ours):
    """The time in which dynamo traces one frame for us. Dynamo traces one frame at a time, in whatever thread. is_ours: whether the
    frame's code is this package's, which looks for hooks of all modules itself."""
    with convert_frame.compile_lock, corrected, (_local.patches or _local.others)(), \
            dynamo_config.patch(skip_nnmodule_hook_guards=False, **UNMARKED), \
            mock.patch.object(symbolic_convert, "get_funcname", _funcname_if_logged), \
            mock.patch.object(guards, "profile_guard_manager", _time_of_guards_if_logged), \
            mock.patch.object(GuardBuilder, "GLOBAL_STATE", _global_state if is_ours else _global_state_and_hooks), \
            mock.patch.object(OutputGraph, "remove_tensorify_specialized_graphargs", _remove_inputs_only), \
            mock.patch.object(symbolic_convert.InstructionTranslatorBase, "log_graph_break", _tell_of_graph_break):
        yield


@contextlib.contextmanager
def _entered():
    convert_frame.ConvertFrameAssert.__call__ = _convert_or_run  # not by mock.patch: each call with a graph break is here
    setattr(convert_frame.ConvertFrame, CLONE, property(_stay_whole))
    try:
        yield
    finally:
        convert_frame.ConvertFrameAssert.__call__ = _convert
        setattr(convert_frame.ConvertFrame, CLONE, _clone)


_entries = Shared(_entered)  # dynamo's ways into a capture, which lead to _convert_or_run() for backends of ours


@contextlib.contextmanager
def tracing(patches=None):
    """A call within it of what was compiled for a backend of ours is captured as this module says.

    patches: makes a context manager that each trace of this thread's happens in.
    """
    before, _local.patches = _local.patches, patches or _local.patches
    try:
        with _entries:
            yield
    finally:
        _local.patches = before


@functools.cache
def trace_from_now_on(patches) -> None:
    """The same for the rest of the process: for a backend that is called by code which is not ours."""
    _Local.others = staticmethod(patches)
    _entries.__enter__()
