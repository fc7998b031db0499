# SPDX-License-Identifier: Apache-2.0
"""caesura.compile_step: forward, loss, backward and optimizer as one program."""

import inspect
import logging

import onnx
import torch
from onnx import helper
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily

from caesura import _core
from caesura.aten import Refused
from caesura.aten.forward import KEPT, import_forward
from caesura.aten.writer import onnx_type
from caesura.backend import decompositions
from caesura.optimizers import Recipe, Stepping, describe_optimizer
from caesura.step_call import make_call


def _logging_calls():
    """Methods of loggers that only write, those that libraries have added to the class (warning_once) included."""
    stems = ("debug", "info", "warning", "error", "log", "exception", "critical")
    return {f for name, f in vars(logging.Logger).items() if callable(f) and name.startswith(stems)}


# Older releases than 2.13 count the graphs of all steps together.
_ISOLATED = {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
_CALLS = 8  # shapes, modes and kinds of arguments that a step goes back and forth between


class StepRefused(RuntimeError):
    """The step cannot be one program; the message lists why and where."""


def compile_step(module: torch.nn.Module, loss_fn, optimizer: torch.optim.Optimizer, *, clip_norm: float = 0.0,
                 accumulation_steps: int = 1, precision: str = "fp32", memory_budget: int = 0, dynamic=None,
                 threads: int = 0) -> "CompiledStep":
    """The whole training step (forward, loss, backward, clipping, optimizer) as one program.

        step = caesura.compile_step(model, torch.nn.functional.cross_entropy, optimizer)
        for inputs, targets in batches:
            loss = step(inputs, targets)
            scheduler.step()

    loss_fn: called as loss_fn(module(*args[:-1], **kwargs), args[-1]); None when the module returns its loss (a scalar, or
        an object or dict with `loss`) and takes all arguments.
    optimizer: its parameters train; SGD, Adam, AdamW and RMSprop are written into the program, and their state lies in
        optimizer.state as PyTorch would have it, so state_dict(), load_state_dict() and schedulers work as always. Any
        other is left to PyTorch, with a FallbackWarning: the program ends with the gradients, in the parameters' .grad,
        and optimizer.step() is called behind it. There is no zero_grad() to call.
    clip_norm: global norm to clip gradients at; 0 does not clip.
    accumulation_steps: calls to one update, which goes by the mean of their gradients.
    precision: "bf16" or "fp16" compute products in that dtype, with parameters and optimizer state in float32; "fp16"
        scales the loss, and an update whose gradients are not finite does not happen.
    memory_budget: bytes that activations may take; what is over it is computed again in the backward. 0: no limit.
    dynamic: as for wrap().
    threads: per kernel; 0 takes CAESURA_NUM_THREADS, or what OpenMP would take.

    Each call returns the loss before the update, a scalar tensor that needs no gradient. Programs are captured at the
    first call and for inputs that no program was captured for; logging calls are left out. StepRefused tells of what
    cannot be captured, with nothing changed. Not for use from several threads at the same time.
    """
    return CompiledStep(module, loss_fn, optimizer, clip_norm, accumulation_steps, precision, memory_budget, dynamic,
                        threads)


class CompiledStep:
    """What compile_step() returns."""

    def __init__(self, module, loss_fn, optimizer, clip_norm, accumulation_steps, precision, memory_budget, dynamic,
                 threads):
        self.module, self.loss_fn, self.optimizer = module, loss_fn, optimizer
        self.clip_norm, self.accumulation_steps, self.threads = clip_norm, accumulation_steps, threads
        self.precision, self.memory_budget = precision, memory_budget
        self.names = {id(p): name for name, p in module.named_parameters()}
        self.names.update((id(b), name) for name, b in module.named_buffers())
        self.micro_steps = 0
        self.programs = []
        self._inputs = self._capturing = self._ran = None
        self._calls = []  # of the programs, the latest first
        self._describe()
        # PyTorch puts other tensors in the place of the state when it loads one.
        optimizer.register_load_state_dict_post_hook(lambda _: self._describe())
        self._call = torch.compile(self._loss, backend=self._capture, fullgraph=True, dynamic=dynamic,
                                   recompile_limit=64, **_ISOLATED)

    def _describe(self, changing=False, restart=False):
        self._calls = []
        try:
            self.recipe = describe_optimizer(self.optimizer, self.names, clip_norm=self.clip_norm,
                                             accumulation_steps=self.accumulation_steps, changing=changing)
        except ValueError as error:
            raise StepRefused(str(error)) from None
        if isinstance(self.recipe, Stepping) and self.precision == "fp16":
            raise StepRefused(f"with precision 'fp16' the program must do the update, which {type(self.optimizer).__name__} "
                              "cannot be written into; 'bf16' needs no scaled loss")
        for program in self.programs:
            if restart:
                program.session = None  # made for another update
            elif program.session is not None:
                program.bind_states()

    def check_optimizer(self):
        """Describes it anew where it would no longer do what was written into the programs."""
        trained = {id(p) for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad}
        changing = isinstance(self.recipe, Recipe) and not self.recipe.has_options()
        if changing or trained != self.recipe.trained.keys():
            self._describe(changing, restart=True)

    def capture(self, *args, **kwargs) -> "_StepProgram":
        """The program for such inputs, captured if need be; nothing is run and nothing changes."""
        self._capturing = []
        try:
            self(*args, **kwargs)
            return self._capturing[0]
        finally:
            self._capturing = None

    def input_names(self, args, kwargs) -> dict:
        """id of each tensor among the inputs to a name: the forward's own parameter names, "target" for the loss's."""
        named = dict(kwargs)
        if self.loss_fn is not None:
            args, named["target"] = args[:-1], args[-1]
        names = [n for n in inspect.signature(self.module.forward).parameters]
        named.update(zip(names, args))
        found = {}
        for path, leaf in torch.utils._pytree.tree_leaves_with_path(named):
            if isinstance(leaf, torch.Tensor):
                found[id(leaf)] = "_".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
        return found

    def _loss(self, *args, **kwargs):
        if self.loss_fn is None:
            out = self.module(*args, **kwargs)
            return out if isinstance(out, torch.Tensor) else out["loss"] if isinstance(out, dict) else out.loss
        return self.loss_fn(self.module(*args[:-1], **kwargs), args[-1])

    def _capture(self, graph, example_inputs):
        _refuse_cuts(graph)
        captured = []

        def keep(module, inputs):
            captured.append((module, TracingContext.get().fw_metadata))
            return module.forward

        compile_graph = aot_autograd(fw_compiler=keep, inference_compiler=keep, decompositions=decompositions(KEPT))
        with torch.no_grad():
            compile_graph(graph, example_inputs)
        module, metadata = captured[0]
        program = _StepProgram(self, module, metadata)
        self.programs.append(program)
        return program

    def __call__(self, *args, **kwargs) -> torch.Tensor:
        if self._capturing is None:
            for _, call, draw_seed in self._calls:
                loss = call(self, args, kwargs, self.micro_steps, draw_seed)
                if loss is not None:
                    self.micro_steps += 1
                    return loss
        self._inputs = (args, kwargs)
        try:
            loss = self._run(*args, **kwargs)
            self._quicken(loss, args, kwargs)
            return loss
        finally:
            self._inputs = self._ran = None

    def _quicken(self, loss, args, kwargs):
        """Makes the next call like this one go past dynamo, where it would come to the same."""
        program, feeds, returned = self._ran or (None, None, None)
        if returned is not loss or not isinstance(self.recipe, Recipe) or program.counters or loss.dtype != torch.float32:
            return
        call = make_call(self, program, feeds, args, kwargs)
        if call is not None:
            draw_seed = program.draw_seed if program.random else None
            self._calls = [(program, call, draw_seed), *(c for c in self._calls if c[0] is not program)][:_CALLS]

    def _run(self, *args, **kwargs):
        if self.programs:
            try:
                return self._call(*args, **kwargs)
            except torch._dynamo.exc.Unsupported:
                pass  # a new capture, which a logging call stands in the way of; nothing has run
        with torch._dynamo.config.patch(ignore_logging_functions=_logging_calls()):
            return self._call(*args, **kwargs)


class _StepProgram:
    """One captured step. Made with the first call's tensors, which tell inputs from parameters."""

    def __init__(self, owner: CompiledStep, module: torch.fx.GraphModule, metadata):
        self.owner, self.module, self.session = owner, module, None
        results = list(next(n for n in module.graph.nodes if n.op == "output").args[0])
        mutated = list(metadata.mutated_inp_runtime_indices)
        self.written = list(zip(mutated, results))  # (which input, what it becomes)
        self.loss = results[len(mutated)]
        self.placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]

    @torch.no_grad()
    def __call__(self, *values):
        owner = self.owner
        owner.check_optimizer()
        if self.session is None:
            self._open(values)
        session = self.session
        if owner._capturing is not None:
            owner._capturing.append(self)
            return (torch.zeros((), dtype=self.dtype),)
        for name, position, bound in self.bound:
            if values[position] is not bound:
                raise StepRefused(f"parameter '{name}' is another tensor than when the step was captured")
            if bound.data_ptr() != self.addresses[name]:  # p.data = ...
                self._bind(name, bound)
        owner.recipe.begin(session, owner.micro_steps)
        if self.random:
            session.seed = self.draw_seed()
        feeds = {name: values[i] for name, i in self.feeds}
        loss = session.step(feeds)
        owner.micro_steps += 1
        owner.recipe.end(session, owner.micro_steps)
        for position, count in self.counters:
            values[position].add_(count)
        owner._ran = self, feeds, torch.tensor(loss, dtype=self.dtype)
        return owner._ran[2:]

    @staticmethod
    def draw_seed():
        return int(torch.randint(2**62, ()))

    def _bind(self, name, value):
        self.session.bind_parameter(name, value)
        self.addresses[name] = value.data_ptr()

    def _open(self, values):
        with unset_fake_temporarily():
            self._import(values)

    def _import(self, values):
        owner = self.owner
        tensors = [(i, n, v) for i, (n, v) in enumerate(zip(self.placeholders, values)) if isinstance(v, torch.Tensor)]
        recipe = owner.recipe
        statistics = self._statistics()
        bound, names, self.feeds, self.constants = [], {}, [], []
        inputs = owner.input_names(*owner._inputs)
        for i, node, value in tensors:
            trained = id(value) in recipe.trained
            name = owner.names.get(id(value)) or inputs.get(id(value)) or f"input_{i}"
            names[node] = name
            if trained or node in statistics:
                bound.append((name, i, value))
            else:
                self.feeds.append((name, i))
                if id(value) in owner.names:
                    self.constants.append((name, value))
        try:
            model = import_forward(self.module, names, {n for i, n, v in tensors if id(v) in recipe.trained}, self.loss)
        except Refused as error:
            raise StepRefused(f"the step cannot be one program:\n{error}") from None
        read = {name for node in model.graph.node for name in node.input}
        self.feeds = [(name, i) for name, i in self.feeds if name in read]
        self.constants = [(name, value) for name, value in self.constants if name in read]
        self.bound = bound = [(name, i, value) for name, i, value in bound if name in read]
        keep_inputs(model, read)
        self._forward = model
        self.trained = [name for name, _, value in bound if id(value) in recipe.trained]
        self.session = _core.Training.open(model.SerializeToString(), {
            "loss": "output", "target": "", "prediction": "loss", "class_axis": 1, "optimizer": recipe.name,
            "coefficients": recipe.coefficients, "groups": recipe.groups, "trainable": self.trained, "frozen": [],
            "clip_norm": float(owner.clip_norm), "accumulation_steps": recipe.accumulation_steps(owner.accumulation_steps),
            "commit": "late", "precision": owner.precision, "memory_budget": owner.memory_budget, "keep_gradients": False,
            "threads": owner.threads, "seed": 0,
        }, {name: value for name, _, value in bound})
        self.addresses = {name: value.data_ptr() for name, _, value in bound}
        self.bind_states()
        self.dtype = self.loss.meta["val"].dtype
        self.random = any(node.op_type == "Dropout" for node in model.graph.node)

    def model(self):
        """The forward as an ONNX model with the module's parameters and buffers as they are now."""
        model = onnx.ModelProto()
        model.CopyFrom(self._forward)
        parameters = {name: value for name, _, value in self.bound} | dict(self.constants)
        keep_inputs(model, {i.name for i in model.graph.input} - set(parameters))
        for name, value in parameters.items():
            raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            made = helper.make_tensor(name, onnx_type(value.dtype), list(value.shape), raw, raw=True)
            model.graph.initializer.append(made)
        return model

    def bind_states(self):
        """Makes the optimizer's state, or the gradients, the tensors that the session's steps write to."""
        recipe = self.owner.recipe
        for name, _, value in self.bound:
            if id(value) in recipe.trained:
                for what, tensor in recipe.bindings(value).items():
                    self.session.bind_parameter(f"{what}.{name}", tensor)

    def _statistics(self):
        """Placeholders that are running statistics of batch norms; sets `counters`, the other buffers that are written."""
        target = torch.ops.aten._native_batch_norm_legit_functional.default
        found, self.counters = set(), []
        for position, result in self.written:
            node = self.placeholders[position]
            if isinstance(result, torch.fx.Node) and result.args and getattr(result.args[0], "target", None) == target:
                found.add(node)
            elif result.target == torch.ops.aten.add.Tensor and result.args[0] is node and isinstance(result.args[1], int):
                self.counters.append((position, result.args[1]))
            else:
                raise StepRefused(f"the module writes to {node.name}, which is no running statistic and no counter")
        return found


def keep_inputs(model, names):
    """Drops all inputs of the model but those of these names."""
    kept = [i for i in model.graph.input if i.name in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _refuse_cuts(graph: torch.fx.GraphModule):
    """A forward that our rules differentiate must not hold gradients of the user's own, or none where there would be one."""
    problems, depends, enabled = [], set(), True
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        if node.op == "placeholder" and isinstance(value, torch.Tensor) and value.requires_grad:
            depends.add(node)
        if any(source in depends for source in node.all_input_nodes):
            depends.add(node)
            if not enabled:
                problems.append(f"{node.target} under no_grad, on what depends on a parameter")
        if node.target == torch._C._set_grad_enabled:
            enabled = node.args[0]
        if "autograd_function_apply" in str(node.target):
            problems.append("an autograd.Function with a backward of its own")
    if problems:
        raise StepRefused("the step cannot be one program:\n" + "\n".join(f"  {p}" for p in dict.fromkeys(problems)))
