# SPDX-License-Identifier: Apache-2.0
"""caesura.compile_step: forward, loss, backward and optimizer as one program."""

import collections
import functools
import logging
import numbers
from collections.abc import Callable
from typing import Any, Optional, get_args
import torch

from caesura import _core
from caesura.cache import compiled_steps, disk, fingerprint
from caesura.cache.fingerprint import Unkeyed, calls_pytorch_alone
from caesura.capture.compat import (REQUIRES_GRAD, BackendCompilerFailed, CodeState, FailOnRecompileLimitHit, GuardOnDataDependentSymNode,
                                    InternalTorchDynamoError, TorchRuntimeError, TracingContext, UncapturedHigherOrderOpError,
                                    Unsupported, UserError, aot_autograd, get_decompositions, global_hooks, inductor_config,
                                    mark_stepped, takes_hooks, tree_map_only)
from caesura.capture.decompositions import decompositions
from caesura.capture.frames import (ELEMENTS_SHARE, NotCaptured, is_known, is_users_error, no_capture, place_of, quietly, tracing, watch,
                                    why)
from caesura.capture.loss_mark import as_loss, attached_loss
from caesura.capture.ops.recurrent import by_layers
from caesura.capture.packed_sequences import drop_unread
from caesura.capture.polyfills import capturing, logging_calls
from caesura.capture.python_rng import take_as_given
from caesura.capture.sources import forward_has_target, leaves, mark_changing, placed, take_target, tensors_of, tensors_of_step, unplaced
from caesura.errors import Error, StepRefused
from caesura.frontends.export import Exported
from caesura.frontends.measured import Measured
from caesura.frontends.ranked import Ranked
from caesura.frontends.step_checks import raise_as_eager, refuse_hooks, refuse_ranks
from caesura.frontends.suspendable import Suspendable
from caesura.lowering.training_importer import DECOMPOSED_TWICE, KEPT, ForwardImporter
from caesura.ranks import Ranks
from caesura.reports import Detour, Detours, collect_from, note_detour
from caesura.rewrites.aliasing import data_assignments, share_storage, writes_to_overlaps, writes_to_saved
from caesura.rewrites.autograd_function import parts_of, take_functions
from caesura.rewrites.complex_numbers import in_pairs
from caesura.rewrites.dropout import take_dropouts_apart
from caesura.rewrites.dtensors import drop_meshes, is_dtensor, refused_dtensors
from caesura.rewrites.fx_meta import describe
from caesura.rewrites.gpu_attention import take_attention
from caesura.rewrites.layout import lay_arguments
from caesura.rewrites.linalg_checks import join_checks
from caesura.rewrites.stop_gradient import (FailsInEager, adds_detaches, as_leaf, detach_all_names, drop_detached, mark_cuts,
                                           reached_by_autograd, reached_inputs, record, sparse_inputs, take_dense, takes_gradients)
from caesura.rewrites.subclasses import refused_subclasses
from caesura.rewrites.tensor_hooks import place_hooks
from caesura.runtime.gpu import CPU, refusal
from caesura.runtime.optimizers import MEMBERS, OPTIONS, TURNS, Gradients, Recipe, Stepping, describe_optimizer, return_counts
from caesura.runtime.step_fast_path import DOES_MORE, UNLIKE, Leave, find_code, find_sources, open_call
from caesura.runtime.step_making import StepMaking
from caesura.runtime.step_program import Captured, CapturedStep, StepProgram
from caesura.runtime.step_ranks import Differs, StepRanks, telling_others
from caesura.typing import Masks, Precision


collect_from(_core.take_step_counts)
_HOOKS = global_hooks()
_CALLS = 8  # shapes, modes and kinds of arguments that a step goes back and forth between
_CAPTURES = 64  # of one step
_TRIALS = 3  # calls of a program, after which none of its keys is looked at
_CHANGES = 3  # of the optimizer's options, that programs are made anew for
_KEYS = 32  # looked up, after which no more are: inputs or the module change too often


def compile_step(module: torch.nn.Module, loss_fn: Optional[Callable[[Any, Any], torch.Tensor]],
                 optimizer: torch.optim.Optimizer, *, clip_norm: float = 0.0, accumulation_steps: int = 1,
                 precision: Precision = "fp32", memory_budget: int = 0, dynamic: Optional[bool] = None, threads: int = 0,
                 masks: Masks = "own", ranks: Ranks = Ranks()) -> "CompiledStep":
    """Compiles the whole training step into one program: forward, loss, backward, clipping and optimizer.

    The first call captures the program, and so does a call with inputs that no program fits yet. Captured programs are
    kept on disk for later processes (CAESURA_PROGRAM_CACHE=off keeps none). Calls of loggers, warnings and print are
    left out of the program. Ops without an equivalent in ONNX run in PyTorch within the program, with a
    FallbackWarning.

    Dropout makes its masks from a seed that each call takes from PyTorch's generator. manual_seed() and set_rng_state()
    repeat them. They are eager's with masks="pytorch" only.

    Args:
        module: the module, on the CPU or on one NVIDIA GPU. Its parameters become contiguous (channels_last does not stay).
            With DTensors (parallelize_module) each rank trains its parts.
        loss_fn: called as ``loss_fn(module(*args, **kwargs), target)``, where the target is the step's last argument, or its
            keyword ``target`` if the forward has no such parameter. None if the module takes all arguments and returns
            its loss: a scalar, or an object or dict with `loss`.
        optimizer: the optimizer of the parameters to train. Those of torch.optim become part of the program (LBFGS and
            SparseAdam are refused). Their state stays in optimizer.state, so state_dict(), load_state_dict() and
            schedulers work as always, and changed rates, betas, momentum and decay count from the next call. For any
            other optimizer the program ends with gradients in the parameters' .grad, and optimizer.step() is called
            after it, with a FallbackWarning.
        clip_norm: Gradients are scaled down to this global norm; 0: they are not.
        accumulation_steps: Batches to one update, which takes the mean of their gradients.
        precision: The dtype in which products, convolutions and attention compute; parameters, optimizer, losses and
            norms stay float32. "fp16" scales the loss; an update whose gradients are not finite does not happen.
        memory_budget: Bytes that a step's arena may take; 0: no limit. Activations that do not fit are computed again in
            the backward.
        dynamic: as for wrap().
        threads: Threads to a kernel; 0: CAESURA_NUM_THREADS, or as many as OpenMP takes.
        masks: of dropout. "own": made within the program, on all threads. "pytorch": those that PyTorch's generator gives,
            so that losses equal eager's; it draws them before each step, one after the other. On the CPU only.
        ranks: the ranks that train together, by default those of torch.distributed's default group, where one is
            initialised; Ranks("alone") has none.

    Returns:
        CompiledStep: call it in place of forward, backward and optimizer.step().

    Raises:
        StepRefused: the step cannot be one program; the message names the line. Nothing has changed.
        ValueError: an option is not as it should be.

    Example::

        step = caesura.compile_step(model, torch.nn.functional.cross_entropy, optimizer)
        for inputs, targets in batches:
            loss = step(inputs, targets)
            scheduler.step()
    """
    making = StepMaking(ranks.group)
    with telling_others(making, ranks.group, optimizer):
        refuse_ranks(ranks, accumulation_steps)
        return CompiledStep(module, loss_fn, optimizer, clip_norm, accumulation_steps, precision, memory_budget, dynamic,
                            threads, masks, StepRanks(module, ranks, making))


class CompiledStep(Suspendable, Ranked, Measured, Exported):
    """A compiled training step; compile_step() makes it. Its methods have the names of a TrainingSession's.

    A call takes the module's arguments, and the target last (or as ``target=...``) if there is a loss function. It returns
    the loss before the update, a scalar tensor without a gradient. There is no zero_grad(), backward() or optimizer.step() to call;
    inputs get no gradients. An argument may be a NumPy array where the forward or the loss function makes a tensor of
    it.

    Thread safety: one thread at a time.

    Raises:
        StepRefused: from a call that cannot be captured; nothing has changed.
        TypeError: from a call without a target, where there is a loss function.

    Example::

        loss = step(inputs, targets)
        print(float(loss), step.updates, step.learning_rate)
    """

    _differing: Any  # of the extension: the program of a call that was not done, as the ranks' calls differ
    _quick: Callable[[tuple[Any, ...], dict[str, Any]], Optional[torch.Tensor]]  # of the extension
    _lend_scaler: Callable[[Any], None]  # of the extension: gives a session the step's scale of the loss

    def __init__(self, module: torch.nn.Module, loss_fn: Optional[Callable[[Any, Any], torch.Tensor]],
                 optimizer: torch.optim.Optimizer, clip_norm: float, accumulation_steps: int, precision: Precision,
                 memory_budget: int, dynamic: Optional[bool], threads: int, masks: Masks, ranks: StepRanks) -> None:
        super().__init__()
        self._ranks = ranks
        if not clip_norm >= 0:
            raise ValueError(f"clip_norm is a norm, 0 or more (0 does not clip), got {clip_norm}")
        counts = {"accumulation_steps": (accumulation_steps, 1), "memory_budget": (memory_budget, 0), "threads": (threads, 0)}
        for name, (value, least) in counts.items():
            if not (isinstance(value, numbers.Integral) and int(value) >= least):
                raise ValueError(f"{name} is a number of {least} or more, got {value!r}")
        if dynamic not in (None, True, False):
            raise ValueError(f"dynamic is None, True or False, got {dynamic!r}")
        if precision not in get_args(Precision):
            raise ValueError(f"precision is one of {', '.join(get_args(Precision))}, got {precision!r}")
        if masks not in get_args(Masks):
            raise ValueError(f"masks is one of {', '.join(get_args(Masks))}, got {masks!r}")
        self.module, self.loss_fn, self.optimizer = module, loss_fn, optimizer
        self.clip_norm, self.accumulation_steps, self.threads = clip_norm, accumulation_steps, threads
        self.precision, self.memory_budget, self.dynamic, self.masks = precision, memory_budget, dynamic, masks
        self._recipe, self._gradients = None, Gradients()
        self._forward_has_target = forward_has_target(module)
        self._programs = []
        self._inputs: Any = None
        self._ran: Any = None
        self._capturing = self._gives_leaves = False
        self._keys = 0 if dynamic is True else _KEYS
        self._changes = _CHANGES
        self._detours = Detours(f"the step of {type(module).__name__}")
        self._sizes = collections.defaultdict(CodeState)  # that its captures have seen
        self._recalled = {}  # the tensors' shapes of the last program that came from disk, by path
        self._describe()
        if takes_hooks(optimizer):  # one without is updated by no program. Loading replaces a state's tensors.
            optimizer.register_load_state_dict_post_hook(lambda _: self._describe())
            return_counts(optimizer)
        self._call = torch.compile(self._loss, backend=self._capture, fullgraph=True, dynamic=dynamic,  # type: ignore[call-overload]
                                   recompile_limit=_CAPTURES, isolate_recompiles=True)

    def _describe(self, changing: Any = None) -> None:
        self._calls = []
        self._names = {id(tensor): name for name, tensor in tensors_of_step(self.module, self.loss_fn, self.optimizer).items()}
        try:
            recipe = describe_optimizer(self.optimizer, self._gradients, clip_norm=self.clip_norm,
                                        accumulation_steps=self.accumulation_steps, changing=changing)
        except ValueError as error:
            raise StepRefused(str(error)) from None
        if isinstance(recipe, Stepping):
            self._ranks.refuse_optimizer(self.optimizer, recipe.reason)
        if isinstance(recipe, Stepping) and self.precision == "fp16":
            raise StepRefused(f"with precision 'fp16' the program must do the update, which PyTorch's {type(self.optimizer).__name__} "
                              f"would do ({recipe.reason}); 'bf16' needs no scaled loss")
        if self._recipe is not None and self._recipe.written() != recipe.written():
            if self._recipe.members != recipe.members:
                self._ranks.rows.drop()
            self._open_again()
        self._recipe = recipe

    def _open_again(self) -> None:
        """Closes the sessions, which were made for another update or other ranks."""
        self._refuse_while_one_waits()
        self._calls = []
        self._programs = [p for p in self._programs if p.is_captured]
        for program in self._programs:
            program.session = None

    def _check_optimizer(self) -> None:
        """Describes the optimizer again if it no longer matches the programs."""
        change = self._recipe.change()
        if change == OPTIONS and self._changes:
            self._changes -= 1
            self._describe()
        elif change:
            self._describe(None if change == MEMBERS else change)

    def _join_window(self, program: Any) -> bool:
        """Adds the next call to its update's window. False if PyTorch must do the update; the program is closed."""
        is_first = self.micro_steps % self.accumulation_steps == 0
        window = frozenset() if is_first else self._window
        self._lend_scaler(program.session)
        misfit = self._recipe.misfit(program, window)
        if misfit == TURNS:
            self._ranks.want_rows()
        if misfit:
            self._describe(misfit)
            return False
        if not is_first:  # otherwise the session begins with new gradients
            scale = program.session.loss_scale / self._loss_scale
            for parameter, gradient in self._gradients.tensors.items():
                if id(parameter) not in window:
                    gradient.zero_()
                elif scale != 1:
                    gradient.mul_(scale)
        self._window, self._loss_scale = window | program.learning, program.session.loss_scale
        return True

    def _capture_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        """Finds the program for such inputs, and captures it if necessary; nothing runs and nothing changes."""
        self._capturing = True
        try:
            self._first(args, kwargs)
        except Captured as captured:
            return captured
        finally:
            self._capturing = False
        raise AssertionError("a capture ends by Captured")

    def _loss(self, *args: Any, **kwargs: Any) -> Any:
        if self._gives_leaves:
            args, kwargs = tree_map_only(torch.Tensor, as_leaf, (args, kwargs))
        for hooks in _HOOKS:
            _ = len(hooks)  # so that dynamo's guards hold them; a comprehension's code would be traced apart
        if self.loss_fn is None:
            out = self.module(*args, **kwargs)
            loss = out if isinstance(out, torch.Tensor) else out["loss"] if isinstance(out, dict) else getattr(out, "loss", None)
        else:
            args, kwargs, target = take_target(self._forward_has_target, args, kwargs)
            loss = self.loss_fn(self.module(*args, **kwargs), target)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"the loss must be a tensor, returned or in `loss` of what is returned, and is a {type(loss).__name__}")
        # The clone separates the loss from other values. Dynamo needs the detach to return it after a requires_grad_().
        return as_loss(loss.clone())

    def _capture(self, graph: Any, example_inputs: Any) -> Any:
        example_inputs = take_as_given(graph, example_inputs)
        position, loss = attached_loss(graph)
        differentiates = any(map(takes_gradients, parts_of(graph)))
        detach_all_names(graph)
        hooks = [problem for part in parts_of(graph) for problem in place_hooks(part)]
        saved = [f"it writes to what an autograd.Function has saved for its backward (at {describe(node)})"
                 for part in parts_of(graph) for node in writes_to_saved(part)]
        functions, problems = take_functions(graph)
        problems += saved
        if differentiates and functions:
            problems.append("an autograd.Function, or a hook, in a forward that takes gradients")
        problems += hooks
        reached, sparse = reached_by_autograd(graph, loss, functions), sparse_inputs(graph)
        problems += [problem for part in parts_of(graph) for problem in mark_cuts(part, functions, keep_modes=differentiates)]
        reached = reached_inputs(graph, loss) if reached is None else reached
        problems += [f"it assigns the data of a tensor: write to the tensor itself, copy_() or lerp_() under no_grad "
                     f"(at {describe(node)})" for node in data_assignments(graph.graph)]
        problems += [f"it writes to memory that two of the call's tensors share (at {describe(node)})"
                     for node in share_storage(graph.graph)]
        problems += [f"{ELEMENTS_SHARE} (at {describe(node)})" for part in parts_of(graph) for node in writes_to_overlaps(part.graph)]
        problems += refused_dtensors(graph, loss) + refused_subclasses(graph)
        if problems:
            raise StepRefused("the step cannot be one program:\n" + "\n".join(f"  {p}" for p in problems))
        devices = {t.device for t in example_inputs if isinstance(t, torch.Tensor)}
        if why := refusal(devices):
            raise StepRefused(f"the step cannot be one program: {why}")
        if devices - {CPU}:
            if self.masks == "pytorch":
                raise StepRefused("masks='pytorch' are those of PyTorch's generator of the CPU; the module is on a GPU")
            take_attention(graph, own_dropout=True)
        drop_unread(graph.graph)
        captured, table = [], decompositions(KEPT)
        has_more = any(map(adds_detaches, parts_of(graph)))
        if differentiates:
            for part in parts_of(graph):
                take_dense(part)
            record(graph)
            table |= get_decompositions(DECOMPOSED_TWICE)

        def keep(module: Any, inputs: Any) -> Any:
            metadata = TracingContext.get().fw_metadata
            join_checks(module, len(metadata.tokens))
            drop_meshes(module, example_inputs)
            kept = take_dropouts_apart(module.graph) if self.masks == "pytorch" else []
            if kept:
                raise StepRefused("the step cannot be one program:\n  the sizes of a dropout depend on values, or no call before it has "
                                  f"them as numbers, so that masks='pytorch' cannot be drawn before the step (at {describe(kept[0])})")
            left = lay_arguments(module.graph, past_views=False)
            if left:
                raise StepRefused(f"the step cannot be one program:\n  {left[0].target} of a part of a tensor (at {describe(left[0])})")
            if has_more:
                drop_detached(module)
            captured.append((in_pairs(module, real_inputs=True), metadata))
            return module.forward

        compile_graph = aot_autograd(fw_compiler=keep, inference_compiler=keep, decompositions=table)
        try:
            with torch.no_grad(), inductor_config.patch(fallback_random=True):  # draws that nothing reads stay
                compile_graph(graph if differentiates else by_layers(graph), example_inputs)
        except (TypeError, NotImplementedError) as error:  # as PyTorch's hessian ends
            raise StepRefused(f"the step cannot be one program: PyTorch does not trace it: {error}") from error
        module, metadata = captured[0]
        value = loss.meta["example_value"]
        if value.numel() != 1 or not value.is_floating_point():
            raise StepRefused(f"the loss is no number but {value.dtype} {list(value.shape)}")
        program = CapturedStep(self, module, metadata, position, reached, sparse, calls_pytorch_alone(graph),
                               functools.partial(ForwardImporter, functions, table, differentiates))
        self._programs.append(program)
        return program

    def _first(self, args: Any, kwargs: Any) -> torch.Tensor:
        """Runs a call that matches none of `_calls`."""
        self._ranks.find(self._programs, self.optimizer, self._recipe.reason)
        loss: torch.Tensor = self._ranks.call(self, lambda: self._run_first(args, kwargs))
        return loss

    def _run_first(self, args: Any, kwargs: Any) -> torch.Tensor:
        self._check_optimizer()
        refuse_hooks(self)
        for parameter in (p for group in self.optimizer.param_groups for p in group["params"] if not p.is_contiguous()):
            parameter.data = parameter.data.contiguous()
        key, before = None, len(self._programs)
        if not self._capturing:
            self._detours.tell()
            mark_stepped(self.optimizer)
            key = self._key(args, kwargs)
            loss = self._quick(args, kwargs) if key is not None and self._recall(key, args, kwargs) else None
            if loss is not None:
                self._detours.add(UNLIKE, len(self._programs) > before, self.micro_steps)
                self._ranks.ended(self)
                return loss
            if self._differing is not None:
                if not self._differing.session.failed_alone:
                    raise Differs
                self._differing = None  # to fail again, and tell the other ranks
        self._inputs = (args, kwargs)
        try:
            ran: torch.Tensor = self._run(*args, **kwargs)
            if not self._capturing:
                with self._detours.after(UNLIKE, len(self._programs) > before, self.micro_steps):
                    self._quicken(ran, args, kwargs, key)
                self._ranks.ended(self)
            return ran
        finally:
            self._inputs = self._ran = None

    def _key(self, args: Any, kwargs: Any) -> Any:
        """The call's compiled_steps.StepKey, for a cheap check of later calls and for the disk; None if it has none."""
        own = tensors_of(self.module)
        for program in self._programs:
            if not program.is_captured:
                program.refuse_others(own.get)
        if self._keys == 0 or not isinstance(self._recipe, Recipe) or any(map(is_dtensor, own.values())):
            return None
        self._keys -= 1
        try:
            return compiled_steps.StepKey(self, args, kwargs)
        except Unkeyed as error:
            note_detour(f"the step of {type(self.module).__name__} is not kept on disk", f"no key holds {error}")
            return None

    def _recall(self, key: Any, args: Any, kwargs: Any) -> bool:
        """True if a program with that key exists, here or on disk; it becomes the first of the quick calls."""
        program = next((p for p in self._programs if key.fits(p)), None)
        if program is None:
            found = compiled_steps.load(key, self, args, kwargs)
            if found is None:
                if self.dynamic is None and not any(p.is_captured for p in self._programs):
                    mark_changing(args, kwargs, self._recalled)
                return False
            program, (traced, text, model, bound, places) = StepProgram(self), found
            try:
                program.open(model, [(name, None, value) for name, value in bound])
            except Error:  # the file is as good as before
                raise
            except (ValueError, RuntimeError) as error:
                disk.discard(text, error)
                return False
            program.key, program.traced, program.places = text, traced, places
            self._programs.append(program)
            self._recalled = {path: leaf.shape for path, leaf in leaves(args, kwargs).items()}
        program.rebind()
        program.follow_counts()
        self._ranks.admit(program)
        if not self._join_window(program):
            return False
        try:
            self._keep(open_call(self, program, unplaced(program.places, self.module), None, key))
        except Detour:
            return False
        return True

    def _quicken(self, loss: Any, args: Any, kwargs: Any, key: Any) -> None:
        """Lets equal later calls, also in other processes, bypass Dynamo if the result is the same. Raises Detour if they cannot."""
        try:
            sources = find_sources(self, self._ran, loss, args, kwargs)
        except Detour:
            self._keys = 0  # later calls will be alike
            raise
        program, _, counters, _ = self._ran
        check, code, is_alone = find_code(self, program, args, kwargs)
        guards, places = check if is_alone else None, placed(sources, self.module)
        traced, text = fingerprint.traced(program.code, {type(self)._loss.__code__, take_target.__code__}), None  # they are ours
        is_kept = program.is_keyed and not program.draws  # which the disk does not hold
        has_key = key is not None and places is not None and not counters and (is_kept or program.is_keyed and guards is None)
        if has_key:
            before, key = key.text, self._key(args, kwargs)
            text = key.follow(traced) if key is not None and key.text == before else None
            if not text:
                note_detour(f"the step of {type(self.module).__name__} is not kept on disk", "its key does not lead to what was traced")
        if guards is None:  # the call may do more than run the program; two calls with equal keys show that it does not
            program.left_behind = (*program.left_behind, text)
            if not text or program.left_behind.count(text) < 2:
                if has_key and len(program.left_behind) < _TRIALS:
                    raise Detour(*DOES_MORE)
                self._keys = 0
                return self._keep(open_call(self, program, sources, check, None, counters, Leave(self, program, code)))
        self._keep(open_call(self, program, sources, None if text else guards, key if text else None, counters))
        if text:
            program.key, program.traced, program.places = text, traced, places
            if is_kept and key.fits(program):
                compiled_steps.store(key, program)

    def _keep(self, call: Any) -> None:
        self._calls = [call, *(c for c in self._calls if c.program is not call.program)][:_CALLS]

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad(), quietly(), tracing():
            try:
                if self._programs:
                    try:
                        with tracing(no_capture):
                            return self._call(*args, **kwargs)
                    except NotCaptured:
                        pass  # nothing has run; a capture needs what follows
                with capturing(self.module, is_step=True, sizes=self._sizes, ignore_logging_functions=logging_calls()):
                    try:
                        return self._call(*args, **kwargs)
                    except Unsupported as error:
                        if self._gives_leaves or REQUIRES_GRAD not in str(error):
                            raise
                        self._gives_leaves = True
                        return self._call(*args, **kwargs)
            except FailOnRecompileLimitHit:
                raise StepRefused(f"captured {_CAPTURES} times, each call differs from all before: an attribute, a number or a "
                                  "shape that changes (TORCH_LOGS=recompiles tells which)") from None
            except (TorchRuntimeError, IndexError, AssertionError) as error:
                raise_as_eager(self, error, args, kwargs)
            except (Unsupported, UserError, InternalTorchDynamoError, GuardOnDataDependentSymNode,
                    UncapturedHigherOrderOpError) as error:
                if is_users_error(error):
                    raise_as_eager(self, error, args, kwargs)
                logging.getLogger("caesura").info("a capture failed", exc_info=True)
                cause = error if isinstance(error, InternalTorchDynamoError) else None
                raise StepRefused(f"the step cannot be one program:\n  {why(error)} (at {place_of(error)})") from cause
            except BackendCompilerFailed as error:
                inner = error.inner_exception
                if isinstance(inner, FailsInEager):
                    raise RuntimeError(str(inner)) from None
                if isinstance(inner, StepRefused):
                    raise inner from inner.__cause__
                logging.getLogger("caesura").info("a capture failed", exc_info=True)
                cause = None if is_known(inner) else inner
                raise StepRefused(f"the step cannot be one program:\n  {why(inner)} (at {place_of(inner)})") from cause


watch(CompiledStep._capture, runs_eager=False)
