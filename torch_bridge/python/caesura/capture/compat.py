# SPDX-License-Identifier: Apache-2.0
"""Access to the private parts of PyTorch that caesura needs. No other module of this package uses one.

A capture stands on Dynamo, AOT autograd and functorch, whose names and texts may change with each release. Names are looked
up when they are first used; `check()` looks all of them up, and raises one error that lists every one that is missing.

SEEN: the releases of PyTorch for which all of this was seen to hold. To add one, run the tests with it; those in
canaries_test.py show what no name shows.
"""

import contextlib
import functools
import importlib
import inspect
import types
import warnings
from unittest import mock

import torch

from caesura.user_code import calling_line

SEEN = ("2.13.0", "2.14.1", "2.15.0")

# By the name that other modules import here.
_PRIVATE = {
    # AOT autograd: a graph of Dynamo's as a functional forward and backward of ATen calls.
    "aot_autograd": "torch._dynamo.backends.common.aot_autograd",
    "core_aten_decompositions": "torch._decomp.core_aten_decompositions",
    "default_partition": "torch._functorch.partitioners.default_partition",
    "force_recompile": "torch.fx._lazy_graph_module._LazyGraphModule.force_recompile",
    "functorch_config": "torch._functorch.config",
    "get_decompositions": "torch._decomp.get_decompositions",
    "inductor_config": "torch._inductor.config",  # its fallback_random: whether a graph keeps random calls that nothing reads
    "global_decomposition_table": "torch._decomp.global_decomposition_table",
    "min_cut_partition": "torch._functorch.partitioners.min_cut_rematerialization_partition",
    "apply_view_meta_sequence": "torch._C._functionalization.apply_view_meta_sequence",
    "OutputType": "torch._functorch._aot_autograd.schemas.OutputType",
    # Tracing: fake tensors, the state of a trace, and symbolic sizes.
    "ConstantSource": "torch._dynamo.source.ConstantSource",
    "detect_fake_mode": "torch._guards.detect_fake_mode",
    "DimDynamic": "torch.fx.experimental.symbolic_shapes.DimDynamic",
    "FakeTensorMode": "torch._subclasses.FakeTensorMode",
    "fake_implementations": "torch._subclasses.fake_impls.op_implementations_dict",  # by operator
    "enable_python_dispatcher": "torch._dispatch.python.enable_python_dispatcher",
    "free_unbacked_symbols": "torch.fx.experimental.symbolic_shapes.free_unbacked_symbols",  # of sizes that depend on values
    "guard_or_false": "torch.fx.experimental.symbolic_shapes.guard_or_false",
    "GuardOnDataDependentSymNode": "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
    "make_fx": "torch.fx.experimental.proxy_tensor.make_fx",
    "optimization_hint": "torch.fx.experimental.symbolic_shapes.optimization_hint",  # of a size
    "TorchDispatchMode": "torch.utils._python_dispatch.TorchDispatchMode",
    "ShapeEnv": "torch.fx.experimental.symbolic_shapes.ShapeEnv",
    "StatelessSymbolicContext": "torch.fx.experimental.symbolic_shapes.StatelessSymbolicContext",
    "TracingContext": "torch._guards.TracingContext",
    "with_context": "torch._guards.tracing",  # a TracingContext within a block
    "unset_fake_temporarily": "torch._subclasses.fake_tensor.unset_fake_temporarily",
    # Dynamo's captures of frames (capture/frames.py replaces parts of them while a capture of ours is under way).
    "cache_entries": "torch._C._dynamo.eval_frame._debug_get_cache_entry_list",  # a code's captures: guards and new code
    "CodeState": "torch._dynamo.pgo.CodeState",  # what Dynamo has seen of a function's sizes
    "convert_frame": "torch._dynamo.convert_frame",
    "ConvertFrameReturn": "torch._dynamo.types.ConvertFrameReturn",
    "dynamo_config": "torch._dynamo.config",
    "FrameAction": "torch._C._dynamo.eval_frame._FrameAction",
    "FrameExecStrategy": "torch._C._dynamo.eval_frame._FrameExecStrategy",
    "GlobalStateGuard": "torch._C._dynamo.guards.GlobalStateGuard",
    "graph_break_hints": "torch._dynamo.graph_break_hints",
    "guards": "torch._dynamo.guards",
    "maybe_mark_dynamic": "torch._dynamo.maybe_mark_dynamic",
    "OutputGraph": "torch._dynamo.output_graph.OutputGraph",
    "RandomValueSource": "torch._dynamo.source.RandomValueSource",
    "symbolic_convert": "torch._dynamo.symbolic_convert",
    # Dynamo's errors.
    "BackendCompilerFailed": "torch._dynamo.exc.BackendCompilerFailed",
    "FailOnRecompileLimitHit": "torch._dynamo.exc.FailOnRecompileLimitHit",
    "InternalTorchDynamoError": "torch._dynamo.exc.InternalTorchDynamoError",
    "TorchRuntimeError": "torch._dynamo.exc.TorchRuntimeError",
    "UncapturedHigherOrderOpError": "torch._dynamo.exc.UncapturedHigherOrderOpError",
    "Unsupported": "torch._dynamo.exc.Unsupported",
    "UserError": "torch._dynamo.exc.UserError",
    # Dynamo's classes for traced values (capture/polyfills.py).
    "build_checkpoint_variable": "torch._dynamo.utils.build_checkpoint_variable",
    "ConstantVariable": "torch._dynamo.variables.ConstantVariable",
    "GetAttrVariable": "torch._dynamo.variables.GetAttrVariable",  # an attribute that Dynamo has not looked into
    "GuardBuilder": "torch._dynamo.guards.GuardBuilder",
    "SideEffects": "torch._dynamo.side_effects.SideEffects",
    "SkipFunctionVariable": "torch._dynamo.variables.SkipFunctionVariable",  # a function at which a trace ends
    "TensorVariable": "torch._dynamo.variables.TensorVariable",
    "UserFunctionVariable": "torch._dynamo.variables.UserFunctionVariable",
    "VariableTracker": "torch._dynamo.variables.base.VariableTracker",
    # functorch's transforms, and modes that are on.
    "dispatch_modes": "torch._C._len_torch_dispatch_stack",  # how many are on
    "function_modes": "torch._C._len_torch_function_stack",
    "functorch_level": "torch._C._functorch.maybe_current_level",  # None outside of a transform
    "get_unwrapped": "torch._C._functorch.get_unwrapped",
    "is_functorch_wrapped_tensor": "torch._C._functorch.is_functorch_wrapped_tensor",
    "set_grad_enabled": "torch._C._set_grad_enabled",  # as a call in Dynamo's graphs
    # autograd: `x.data` as a call in Dynamo's graphs, and writes that no version counts.
    "get_data": "torch._C._autograd._get_data_attr",
    "preserve_version": "torch.autograd._unsafe_preserve_version_counter",
    # Operators, and functions that have no public name.
    "all_gather_tensor": "torch.distributed._functional_collectives.all_gather_tensor",
    "DispatchKey": "torch._C.DispatchKey",
    "foreach_add_": "torch._foreach_add_",
    "increment_version": "torch.autograd.graph.increment_version",
    "foreach_mul_": "torch._foreach_mul_",
    "HigherOrderOperator": "torch._ops.HigherOrderOperator",
    "jit_operation": "torch._C._jit_get_operation",  # an operator's entry that takes lists as they are, at the least cost
    "OpOverload": "torch._ops.OpOverload",
    "OpOverloadPacket": "torch._ops.OpOverloadPacket",
    "registrations": "torch._C._dispatch_get_registrations_for_dispatch_key",  # names of operators
    "VF": "torch._VF",  # the functions of recurrent layers
    # Layers whose code is replaced while Dynamo traces it.
    "BatchNorm": "torch.nn.modules.batchnorm._BatchNorm",
    "detect_is_causal_mask": "torch.nn.modules.transformer._detect_is_causal_mask",
    # Nests of lists, tuples and dicts.
    "tree_flatten": "torch.utils._pytree.tree_flatten",
    "tree_leaves": "torch.utils._pytree.tree_leaves",
    "tree_leaves_with_path": "torch.utils._pytree.tree_leaves_with_path",
    "tree_map": "torch.utils._pytree.tree_map",
    "tree_map_only": "torch.utils._pytree.tree_map_only",
    "tree_unflatten": "torch.utils._pytree.tree_unflatten",
}
# Parts of those that other modules use by these names.
_PARTS = (
    "torch._dynamo.config.allow_rnn", "torch._dynamo.config.capture_dynamic_output_shape_ops",
    "torch._dynamo.config.record_runtime_overhead", "torch._dynamo.config.trace_autograd_ops",
    "torch._dynamo.convert_frame.compile_lock",
    "torch._dynamo.convert_frame.ConvertFrame._clone_with_backend", "torch._dynamo.convert_frame.ConvertFrameAssert.__call__",
    "torch._dynamo.eval_frame._stance.stance", "torch._dynamo.graph_break_hints.USER_ERROR",
    "torch._dynamo.guards.GuardBuilder.GLOBAL_STATE", "torch._dynamo.guards.guards_log", "torch._dynamo.guards.profile_guard_manager",
    "torch._dynamo.output_graph.OutputGraph.remove_tensorify_specialized_graphargs",
    "torch._dynamo.pgo._CODE_STATE", "torch._dynamo.side_effects.SideEffects.store_attr",
    "torch._dynamo.symbolic_convert.InstructionTranslatorBase.log_graph_break", "torch._dynamo.symbolic_convert.get_funcname",
    "torch._dynamo.symbolic_convert.trace_call_log", "torch._dynamo.variables.GetAttrVariable.call_method",
    "torch._dynamo.variables.TensorVariable.as_python_constant",
    "torch._dynamo.variables.TensorVariable.call_method", "torch._dynamo.variables.TensorVariable.method_detach_",
    "torch._dynamo.variables.TensorVariable.method_tolist", "torch._dynamo.variables.TensorVariable.synchronize_attributes",
    "torch._dynamo.variables.builder.VariableBuilder._id_dispatch",
    "torch._functorch.config.backward_pass_autocast", "torch._functorch.config.donated_buffer",
    "torch._functorch.config.force_non_lazy_backward_lowering", "torch._functorch.config.guess_tangent_strides_as_outputs",
    "torch._inductor.config.fallback_random",
    "torch.ops.aten.add.Tensor._dispatch_cache", "torch.ops.aten.add.Tensor._schema", "torch.ops.aten.add.Tensor.py_kernels",
    "torch.Tensor._backward_hooks", "torch.Tensor._base", "torch.Tensor._is_view", "torch.Tensor._version",
    "torch.UntypedStorage._cdata", "torch.nn.Module._call_impl",
)
# Texts and keys that other modules match: the text, and the function that writes it; or the constant, which some releases have.
_GRAPH_BREAK = "torch._dynamo.exc.format_graph_break_message"
_TEXTS = {
    "APPLIES_FUNCTION": ("autograd_function_apply", "torch._functorch.autograd_function.AutogradFunctionApply.__init__"),
    "BRANCHING": ("Data-dependent branching", "torch._dynamo.symbolic_convert.generic_jump"),
    "CONTEXT": ("Developer debug context: ", _GRAPH_BREAK),
    "CREATED_AT": ("Created at:", "torch._guards.Guard.create"),
    "DATA_DEPENDENT": ("data-dependent expression",
                       "torch.fx.experimental.symbolic_shapes.ShapeEnv._make_data_dependent_error"),
    "EXPLANATION": ("Explanation: ", _GRAPH_BREAK),
    "GRAPHS": ("__compiled_fn", "torch._dynamo.bytecode_transformation.COMPILED_FN_PREFIX",
               "torch._dynamo.output_graph.OutputGraph.compile_and_call_fx_graph"),  # prefix of graphs in Dynamo's code
    "GUARD_FAILED": ("Error while creating guard", "torch._guards.Guard.create"),
    "HINT": ("Hint: ", _GRAPH_BREAK),
    "MARKS": ("_dynamo_", "torch._dynamo.decorators.maybe_mark_dynamic"),  # prefix of attributes that Dynamo gives to parameters
    "META_FAILED": ("failed while attempting to run meta", "torch._subclasses.fake_tensor.FakeTensorMode._dispatch_impl"),
    "MODULES": ("__import_", "torch._dynamo.symbolic_convert.InstructionTranslatorBase.import_source"),  # and of modules
    "NON_DIFFERENTIABLE": ("non_differentiable_idx", "torch._functorch.autograd_function.AutogradFunctionApply.__call__"),
    "OBSERVED": ("Observed exception",  # of the forward's own, that dynamo has traced
                 "torch._dynamo.symbolic_convert.InstructionTranslatorBase.exception_handler"),
    "REQUIRES_GRAD": ("requires_grad_()", "torch._dynamo.variables.TensorVariable.method_requires_grad_"),
    "TOLIST": ("Tensor.tolist()", "torch._dynamo.variables.TensorVariable.method_tolist"),
}
# Attributes of objects that PyTorch hands over, by their class.
_FIELDS = {
    "torch._functorch._aot_autograd.schemas.ViewAndMutationMeta": (
        "grad_enabled_mutation", "input_info", "is_rng_op_functionalized", "mutated_inp_runtime_indices", "num_backward_tokens",
        "num_forward", "num_graphsafe_rng_states", "num_intermediate_bases", "num_mutated_graph_handled_indices",
        "num_mutated_inp_runtime_indices", "num_opaque_objects_saved_for_bw", "num_outputs_aliased",
        "num_tensors_saved_with_no_vc_check", "output_info", "subclass_fw_graph_out_meta", "subclass_inp_meta", "tokens"),
    "torch._functorch._aot_autograd.schemas.InputAliasInfo": (
        "mutates_data", "mutates_metadata", "mutations_under_no_grad_or_inference_mode", "requires_grad"),
    "torch._functorch._aot_autograd.schemas.OutputAliasInfo": ("base_idx", "output_type", "requires_grad", "requires_grad_for_backward"),
    "torch._dynamo.exc.TorchDynamoException": ("frame_exec_strategy",),
    "torch._dynamo.exc.Unsupported": ("gb_type", "logged", "real_stack"),
    "torch._dynamo.exc.BackendCompilerFailed": ("inner_exception",),
}
_MISSING = object()


def _find(path: str):
    """The object at a dotted path, or _MISSING."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, _MISSING)
        return found
    return _MISSING


def _codes(code):
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _says(place, text: str) -> bool:
    """True if a function has the text among its constants and names, or if the constant `place` is the text."""
    if isinstance(place, str):
        return place == text
    if not inspect.isfunction(place):
        return False
    said = (said for code in _codes(inspect.unwrap(place).__code__) for said in (*code.co_consts, *code.co_names))
    return any(isinstance(part, str) and text in part for one in said for part in (one if isinstance(one, tuple) else (one,)))


def _has(cls, field: str) -> bool:
    """True if the class declares the field, or sets it as it makes an object."""
    if hasattr(cls, field) or field in getattr(cls, "__dataclass_fields__", ()):
        return True
    makers = (getattr(cls, name, None) for name in ("__init__", "__post_init__"))
    return any(inspect.isfunction(maker) and field in maker.__code__.co_names for maker in makers)


def _release(version: str) -> tuple:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _refuse(missing) -> None:
    first, last = _release(SEEN[0]), _release(SEEN[-1])
    raise ImportError(f"caesura needs {', '.join(missing)}, which PyTorch {torch.__version__} does not have. It was seen to work "
                      f"with PyTorch {', '.join(SEEN)}: pip install 'torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}'")


def check() -> None:
    """Looks all names, texts and fields up. Raises ImportError, which lists those that PyTorch lacks; warns if PyTorch is newer
    than any release in SEEN."""
    missing = [path for path in (*_PRIVATE.values(), *_PARTS) if _find(path) is _MISSING]
    missing += [f"{text!r} in {places[-1]}" for text, *places in _TEXTS.values()
                if not any(_says(_find(place), text) for place in places)]
    missing += [f"{path}.{field}" for path, fields in _FIELDS.items() for cls in [_find(path)] for field in fields
                if not _has(cls, field)]
    if missing:
        _refuse(missing)
    if _release(torch.__version__) > max(map(_release, SEEN)):
        warnings.warn_explicit(f"caesura was not yet tried with PyTorch {torch.__version__}, whose private parts it uses; it was "
                               f"seen to work with {', '.join(SEEN)}", RuntimeWarning, *calling_line()[:2])


def __getattr__(name):
    if name in _TEXTS:
        return _TEXTS[name][0]
    if name not in _PRIVATE:
        raise AttributeError(f"module 'caesura.capture.compat' has no attribute '{name}'")
    value = _find(_PRIVATE[name])
    if value is _MISSING:
        check()
    globals()[name] = value
    return value


# --- attributes of PyTorch's objects ---

# The dicts of an nn.Module that hold its parts.
MODULE_PARTS = ("_modules", "_parameters", "_buffers")
# Attributes of an nn.Module that only saving and loading asks for; the last three are asked for where there are hooks.
SAVING = {"_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
          "_load_state_dict_post_hooks", "_is_full_backward_hook", "_forward_hooks_with_kwargs",
          "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs"}
CALL = "_call_impl"  # the method of an nn.Module that its call is
CLONE = "_clone_with_backend"  # a property of Dynamo's ConvertFrame


def storage_id(tensor) -> int:
    """The same for tensors that share their memory. Raises NotImplementedError for tensors that have none."""
    return tensor.untyped_storage()._cdata


def version(tensor) -> int:
    """Counts what is written to the tensor's memory."""
    return tensor._version


def base(tensor):
    """The tensor that this one is a view of; None for others."""
    return tensor._base


def is_view(tensor) -> bool:
    return tensor._is_view()


def has_hooks(tensor) -> bool:
    """True if the tensor has hooks that its gradient passes through."""
    return bool(tensor._backward_hooks)


def has_accumulation_hooks(parameter) -> bool:
    """True if the parameter has hooks that are called once its gradient is accumulated."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def symbol_by_values(size):
    """The symbol that a size got since it depends on values; None for others. A trace may have replaced it by now (size.node.expr)."""
    symbol = size.node._expr
    return symbol if symbol.is_Symbol and size.node.shape_env.is_unbacked_symint(symbol) else None


def schema(overload):
    """An operator's arguments: names, types, defaults, and which of them it writes to."""
    return overload._schema


def backward_hooks(module) -> list:
    """A module's dicts of hooks around its backward."""
    return [vars(module)[f"_{name}_hooks"] for name in ("backward", "backward_pre")]


def global_hooks() -> list:
    """The dicts of hooks of all modules."""
    held = vars(torch.nn.modules.module)
    return [hooks for name, hooks in held.items() if name.startswith("_global_") and isinstance(hooks, dict)]


def global_backward_hooks() -> list:
    """Those of them that are called in the backward."""
    held = vars(torch.nn.modules.module)
    return [held["_global_backward_hooks"], held["_global_backward_pre_hooks"]]


def step_hooks(optimizer) -> list:
    """An optimizer's dicts of hooks around its step; one that was made without Optimizer.__init__ has none."""
    return [vars(optimizer).get(name, {}) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")]


def takes_hooks(optimizer) -> bool:
    """True if the optimizer's hooks can be registered; False if it was made without Optimizer.__init__."""
    return "_optimizer_load_state_dict_post_hooks" in vars(optimizer)


def weights_of(layers) -> list:
    """The weights of recurrent layers, as PyTorch's call of all layers takes them."""
    layers._update_flat_weights()
    return layers._flat_weights


def mark_stepped(optimizer) -> None:
    """Marks the optimizer as stepped, for schedulers, which warn if they step first."""
    optimizer._opt_called = True


def group_timeout(process_group):
    """The time that each collective of a torch.distributed group may take."""
    backend = process_group._get_backend(process_group._device_types[0])
    return backend.options._timeout


def original(function):
    """The function that torch.compile or Dynamo has wrapped; None for others."""
    return getattr(function, "_torchdynamo_orig_callable", None)


def boxed(function):
    """The same function, which AOT autograd calls with a list of arguments that it may empty."""
    function._boxed_call = True
    return function


@functools.cache
def _eval_frame():
    return _find("torch._dynamo.eval_frame")


def stance() -> str:
    """The stance that torch.compiler.set_stance() has set, or "default". Each call of a wrapped module reads it."""
    return _eval_frame()._stance.stance


def backend_of(converter):
    """The backend that one of Dynamo's converters of frames captures for."""
    return converter._torchdynamo_orig_backend


def is_one_graph(converter) -> bool:
    """True if the capture was requested with fullgraph=True."""
    return converter._one_graph


def builders_by_id() -> dict:
    """Dynamo's table of builders: an object's id to a function of the VariableBuilder and the object."""
    return _find("torch._dynamo.variables.builder.VariableBuilder._id_dispatch")()


def seeing(sizes):
    """A context in which Dynamo makes a size a symbol if it has changed since the first call that `sizes` knows, a defaultdict of
    CodeState; by itself it goes by all calls of the process. It adds to `sizes`."""
    return mock.patch.object(_find("torch._dynamo.pgo"), "_CODE_STATE", sizes)


@contextlib.contextmanager
def tracing_tolist(function):
    """Dynamo calls `function` for Tensor.tolist() within the block."""
    traced = _find("torch._dynamo.variables.TensorVariable")
    methods = getattr(traced, "tp_methods", {})  # since PyTorch 2.14 Dynamo takes the method from here
    entries = {"tolist": type(methods["tolist"])(function)} if methods else {}
    with mock.patch.object(traced, "method_tolist", function), mock.patch.dict(methods, entries):
        yield


@contextlib.contextmanager
def with_kernel(overload, key, function):
    """Makes `function` an operator's Python kernel for a dispatch key within the block; None: the operator has none."""
    kernel = overload.py_kernels.pop(key, None)
    if function is not None:
        overload.py_kernels[key] = function
    overload._dispatch_cache.clear()
    try:
        yield
    finally:
        overload.py_kernels.pop(key, None)
        if kernel is not None:
            overload.py_kernels[key] = kernel
        overload._dispatch_cache.clear()
