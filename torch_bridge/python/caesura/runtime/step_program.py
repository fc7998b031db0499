# SPDX-License-Identifier: Apache-2.0
"""The programs of a compiled step: the forward as a model, opened for training on the module's own tensors."""

import time

import onnx
import torch
from onnx import helper

from caesura import _core
from caesura.capture.compat import OutputType, TracingContext, unset_fake_temporarily
from caesura.capture.rng_inputs import sizes_of
from caesura.capture.sources import input_names
from caesura.errors import StepRefused
from caesura.lowering import Refused
from caesura.lowering.aten_fallback import DOMAIN
from caesura.lowering.onnx_builder import onnx_type, with_bodies
from caesura.lowering.ops.exchange import is_exchange
from caesura.lowering.training_importer import import_forward, leaves_statistics, needed, number_input
from caesura.reports import RECORD
from caesura.rewrites.aliasing import share_memory
from caesura.rewrites.dtensors import held, is_dtensor
from caesura.rewrites.fx_meta import describe
from caesura.runtime.gpu import CPU, open_gpu


# Drawn anew from PyTorch's generator for each call of a step that draws.
SEED = torch.empty((), dtype=torch.int64, device=CPU)


class NotOpened(StepRefused, ValueError):
    """Raised where no session opens for a captured program, as one option's value is wrong; a ValueError as well."""


class Captured(Exception):
    """Ends a call that was made only to get its program, before the call has done anything. values: of the program's inputs."""

    def __init__(self, program, values):
        super().__init__()
        self.program, self.values = program, values


class StepProgram:
    """One step as a program: captured, or read from disk."""

    counters = draws = arguments = ()
    apart = ()  # (buffer's name, positions of it and of an argument among a call's values): they may share no memory
    more = {}  # what its session is opened with besides
    kept = {}  # tensors that steps leave their results in beside the module's, by name
    is_captured = False
    gpu = None  # that the parameters are on; None: the CPU
    key = traced = places = None  # of a program that has a compiled_steps.StepKey's: it, the code traced, and where the feeds are

    left_behind = ()  # the keys that its first calls recorded
    needs_dynamo = False  # its calls cannot go without
    counted = ()  # buffers that count calls: (tensor, what a call adds to it)
    leaves_results = False  # a call leaves more than the loss
    is_parallel = False  # it computes with DTensors, or exchanges values with other ranks
    rank_parts = ()  # the names of the parameters of which this rank has its own part
    dtype = torch.float32  # of the loss
    meeting = None  # of the step's ranks, since which the session compares what it is told
    rows, has_offsets = (), False  # Recipe.rows_of() of its parameters
    added = {}  # parameters and running statistics that only other ranks' programs have, by name
    uses = ()  # the rows of RankRows that it uses

    def __init__(self, owner):
        self.owner, self.session, self.constants = owner, None, []
        self._watch = None  # of what rebind() has bound last

    def open(self, forward: onnx.ModelProto, bound, rows=None):
        """forward: the model. bound: (name, position among the capture's values, tensor) that the session holds itself. rows: as
        Recipe.rows_of() gives them; by default of the parameters as they are."""
        owner, recipe = self.owner, self.owner._recipe
        self.forward, self.bound = forward, bound
        own = {name: value for name, _, value in bound if id(value) in recipe.trained}
        self.learning = frozenset(map(id, own.values()))
        self.added = owner._ranks.added_to({name: value for name, _, value in bound}, own, owner)
        self.learners = own | {name: value for name, value in self.added.items() if id(value) in recipe.trained}
        self.trained = [*self.learners]
        rows, has_offsets = rows or self._rows_now()
        owner._ranks.shards.refuse_others(self.learners)
        self.uses = owner._ranks.rows.used(own)
        if owner._ranks.shards.is_divided and not owner._ranks.shards.fit(rows):
            owner._ranks.want_rows()
        device = bound[0][2].device
        self.gpu = None if device == CPU else open_gpu(device)[0]
        among = owner._ranks.arguments(device, self.gpu)
        session = _core.Training.open(self._with_added().SerializeToString(), {
            "loss": "output", "target": "", "prediction": "loss", "class_axis": 1, "optimizer": recipe.name,
            "coefficients": recipe.coefficients, "groups": recipe.groups_of(rows),
            "fed": [*recipe.fed, *(["step_offset"] if has_offsets else [])],
            "trainable": self.trained, "frozen": [], "clip_norm": float(owner.clip_norm),
            "accumulation_steps": recipe.accumulation_steps(owner.accumulation_steps), "commit": "late",
            "precision": owner.precision, "memory_budget": owner.memory_budget, "keep_gradients": False, "unbiased_statistics": True,
            "threads": owner.threads, "seed": 0, "gpu": self.gpu, "rank_parts": [name for name in self.trained if name in self.rank_parts],
            **self.more, **among,
        }, {name: as_real(value).cpu() for name, value in self.tensors()} | self.kept)
        owner._ranks.take_statistics(session)
        self.session, self.rows, self.has_offsets = session, rows, has_offsets  # both of this session
        self._held = {} if self.gpu else {name: (value, held(value).data_ptr()) for name, value in self.tensors()}
        if self.gpu:  # the module's tensors stay there, whatever happens: a failure is the caller's to see
            self.session.disable_fallback()
        self._watch = self.meeting = None
        owner._prepare(self)
        self.rebind()
        self.random = any(map(draws_in_run, with_bodies(forward.graph.node)))

    def tensors(self):
        """(name, tensor) of all that the session holds."""
        return [*((name, value) for name, _, value in self.bound), *self.added.items()]

    def _with_added(self) -> onnx.ModelProto:
        """The forward with the tensors that only other ranks' programs have."""
        if not self.added:
            return self.forward
        model = onnx.ModelProto()
        model.CopyFrom(self.forward)
        fed = next((i.name for i in model.graph.input if i.name in self.added), None)
        if fed is not None:
            raise StepRefused(f"'{fed}' is an input of this rank's program, and another rank's writes to it: a step does not take that")
        for name, value in self.added.items():
            value = as_real(value)
            model.graph.input.append(helper.make_tensor_value_info(name, onnx_type(value.dtype), list(value.shape)))
        return model

    def model(self):
        """The forward as an ONNX model with the module's parameters and buffers as they are now."""
        model = onnx.ModelProto()
        model.CopyFrom(self.forward)
        parameters = {name: value for name, _, value in self.bound} | dict(self.constants)
        keep_inputs(model, {i.name for i in model.graph.input} - set(parameters))
        for name, value in parameters.items():
            value = as_real(value)
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            made = helper.make_tensor(name, onnx_type(value.dtype), list(value.shape), raw, raw=True)
            model.graph.initializer.append(made)
        return model

    def rebind(self):
        """Binds the session to the current tensors that its steps write to: parameters whose elements have moved
        (p.data = ...), the optimizer's state, or the gradients."""
        if self.holds_its_tensors():
            return
        owner, is_divided = self.owner, bool(self.session.shards)
        try:
            for name, value in self.tensors():
                self._bind(name, value)
                for what, tensor in owner._recipe.bindings(value, is_divided).items() if name in self.learners else ():
                    self._bind(f"{what}.{name}", tensor)
            if is_divided:
                owner._ranks.shards.bind(self, owner.optimizer)
        except ValueError as error:
            raise StepRefused(str(error)) from None
        self._watch, self.meeting = _core.Watch(), None
        self.watch(self._watch)

    def holds_its_tensors(self) -> bool:
        """True if rebind() would change nothing."""
        return self._watch is not None and self._watch.unchanged()

    def _bind(self, name, tensor):
        now = tensor, held(tensor).data_ptr()
        before = self._held.get(name)
        if before is None or before[0] is not tensor or before[1] != now[1]:
            self.session.bind_parameter(name, as_real(tensor))
            self._held[name] = now

    def watch(self, watch):
        """Adds to a _core.Watch all that rebind() depends on."""
        for _, value in self.tensors():
            watch.tensor(held(value), True)
        for parameter in self.owner._ranks.compared(self.owner).values():
            watch.version(parameter)
        self.owner._recipe.watch(watch, self.learners.values())

    def set_facts(self, number: int):
        """Has the session compare a hash with the other ranks', and the number of PyTorch's writes to parameters from here on."""
        self.session.set_callers_facts((number - self._watch.writes()) % 2**64)

    def counts(self) -> list:
        """The tensors that count the updates of each parameter that the last step has updated."""
        return [self.owner._recipe.count(self.learners[name]) for row, (_, names) in enumerate(self.rows) if self.session.used(row)
                for name in names]

    def updates(self) -> int:
        """The number of updates of the first row that has parameters, by which the session counts."""
        return int(self.owner._recipe.count(self.learners[next(names[0] for _, names in self.rows if names)]))

    def _rows_now(self):
        """The rows of the program's parameters, for a call of it. Quick calls of programs that have others now are dropped."""
        owner = self.owner
        if owner._ranks.rows.rows is not None:
            owner._ranks.check_counts(owner)
            return owner._ranks.rows.rows, True
        rows = owner._recipe.rows_of(self.learners, owner._ranks.shards.is_divided)
        owner._calls = [call for call in owner._calls if owner._recipe.has_rows(call.program)]
        return rows

    def follow_counts(self):
        """Opens the session again if parameters that it takes to have had the same number of updates no longer have."""
        rows = self._rows_now()
        if rows != (self.rows, self.has_offsets):
            self.owner._refuse_while_one_waits()
            self.open(self.forward, self.bound, rows)

    def ended(self):
        """Counts a step that has come to its end."""
        owner = self.owner
        owner._keep_scaler(self.session)
        owner.micro_steps += 1
        norm = owner._recipe.end(self, owner.micro_steps, owner._window)
        if owner.micro_steps % owner.accumulation_steps == 0:
            owner._gradient_norm = norm
        for counter, count in self.counted:
            counter.add_(count)

    def refuse_others(self, tensor_of):
        """tensor_of: the parameter that has a name now, None where there is none."""
        for name, _, value in self.bound:
            now = tensor_of(name)
            if now is not None and now is not value:
                raise StepRefused(f"parameter '{name}' is another tensor than when the step was captured")


class CapturedStep(StepProgram):
    """A step that dynamo calls. Made with the first call's tensors, which tell inputs from parameters. loss: which of the
    graph's outputs it is; the others are what the call leaves in attributes. reached: the positions of the inputs that have a
    gradient of it; sparse: those whose gradient is sparse in eager. keyed: whether a key can hold what it calls.
    make_importer: gives a forward.ForwardImporter for the module's calls."""

    is_captured = True

    def __init__(self, owner, module: torch.fx.GraphModule, metadata, loss, reached, sparse, keyed, make_importer):
        super().__init__(owner)
        self.module, self.reached, self.sparse, self.make_importer = module, reached, sparse, make_importer
        results = list(next(n for n in module.graph.nodes if n.op == "output").args[0])
        mutated = list(metadata.mutated_inp_runtime_indices)
        self.written = list(zip(mutated, results))  # (which input, what it becomes)
        self.loss = results[len(mutated) + loss]
        self.outputs = list(zip(results[len(mutated):], metadata.output_info))
        self.leaves_results = len(self.outputs) > 1
        self.is_parallel = any(map(is_exchange, module.graph.nodes))
        self.placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.code = TracingContext.get().traced_code
        values = (n.meta["val"] for n in self.placeholders)
        fixed = all(isinstance(v, torch.Tensor) and all(type(d) is int for d in v.shape) for v in values)
        self.is_keyed = keyed and fixed and len(self.outputs) == 1 and not self.is_parallel  # a StepKey tells its calls
        self._writes = None  # what _written() gives
        self.arguments = []  # (position, what it becomes) of tensors that are written to and are not the module's

    @torch.no_grad()
    def __call__(self, *values):
        owner = self.owner
        owner._check_optimizer()
        if self.session is None:
            self._open(values)
        positions = {name: position for name, position, _ in self.bound}
        self.refuse_others(lambda name: values[positions[name]])
        self.rebind()
        self.follow_counts()
        self.counted = [(values[position], count) for position, count in self.counters]
        if owner._capturing:
            raise Captured(self, values)
        owner._ranks.admit(self)
        if self.leaves_results:
            owner._refuse_to_begin()
        if not owner._join_window(self):
            self._open(values)  # for an optimizer that PyTorch steps
            owner._join_window(self)
        for name, written, given in self.apart:
            if share_memory(values[written], values[given]):
                raise StepRefused(f"an argument of this call lies in the memory of '{name}', which the step writes to: "
                                  "hand over a copy")
        session = self.session
        owner._recipe.begin(self, owner.micro_steps)
        session.set_writes(self._watch.writes())
        session.set_uses(owner._ranks.rows.used({name for name, value in self.learners.items() if id(value) in owner._window}))
        feeds = self.feeds_of(values)
        if self.random:  # after the draws, as a StepCall has it
            session.draw_next_by(int(SEED.random_()))
        began = time.perf_counter()
        if self.gpu:
            self.gpu.wait_for_torch()
        try:
            loss = session.step(feeds)
        except Exception:
            owner._ranks.failed(self)
            raise
        finally:
            owner._waits = session.suspended
        if self.gpu:
            self.gpu.torch_waits()
        RECORD.kernel_seconds += time.perf_counter() - began
        RECORD.kernel_calls += 1
        self.ended()
        for position, kept in self.handed_back:
            values[position].copy_(kept)
        fed = {name: feeds[name] for name, _ in self.feeds}
        owner._ran = self, fed, self.counted, torch.tensor(loss, dtype=self.dtype, device=CPU)
        return self.results(owner._ran[3], values)

    def results(self, loss, values) -> tuple:
        """Returns the outputs of Dynamo's graph after a step with these values."""
        return tuple(loss if give is None else give(values) for give in self.gives)

    def feeds_of(self, values) -> dict:
        """The session's feeds for a call's values. It draws from PyTorch's generator what the program's draws are fed."""
        sizes = sizes_of(self.placeholders, values) if self.draws else {}
        return {name: as_real(values[i]) for name, i in self.feeds} | {draw.name: draw(sizes) for draw in self.draws}

    def _open(self, values):
        with unset_fake_temporarily(), CPU:  # constants are made there, whatever the user's default device
            self._import(values)

    def _import(self, values):
        owner = self.owner
        tensors = [(i, n, v) for i, (n, v) in enumerate(zip(self.placeholders, values)) if isinstance(v, torch.Tensor)]
        recipe = owner._recipe
        inputs = input_names(owner, *owner._inputs)
        name_of = {id(v): owner._names.get(id(v)) or inputs.get(id(v)) or f"input_{i}" for i, _, v in tensors}
        if self._writes is None:  # once: the import removes nodes that this looks at
            self._writes = self._written(values, name_of)
            self.leaves_results |= bool(self.arguments)
            self.is_keyed &= not self.arguments
        kept, writes, norms = self._writes
        groups, self.rank_parts = owner._ranks.take_parts({name_of[id(v)]: v for _, _, v in tensors})
        has_dtensors = any(is_dtensor(v) for _, _, v in tensors)
        self.is_parallel |= has_dtensors
        bound, names, self.feeds, self.constants = [], {}, [], []
        for i, node, value in tensors:
            trained = id(value) in recipe.trained and i in self.reached
            names[node] = name = name_of[id(value)]
            if trained and i in self.sparse:
                recipe.refuse_sparse(value)
            if trained or node in kept:
                bound.append((name, i, value))
            else:
                self.feeds.append((name, i))
                if id(value) in owner._names:
                    self.constants.append((name, value))
        try:
            importer = self.make_importer(groups=groups)
            importer.writer.left_statistics = norms
            model = import_forward(importer, self.module, names, self.loss, writes + self._results())
        except Refused as error:
            raise StepRefused(f"the step cannot be one program:\n{error}") from None
        # Another process would not report PyTorch's calls, nor notice parameters that do not train or whose optimizer refuses.
        self.draws = importer.draws
        read = {name for node in with_bodies(model.graph.node) for name in node.input} | {draw.name for draw in self.draws}
        self.is_keyed = self.is_keyed and not calls_pytorch(model) and not any(
            v.is_complex() or (id(v) in recipe.trained and (i not in self.reached or i in self.sparse)) for i, _, v in tensors)
        self.feeds += [(number_input(i), i) for i, value in enumerate(values) if not isinstance(value, torch.Tensor)]
        self.feeds = [(name, i) for name, i in self.feeds if name in read]
        self.constants = [(name, value) for name, value in self.constants if name in read]
        bound = [(name, i, value) for name, i, value in bound if name in read]
        given = [i for _, i in self.feeds if isinstance(values[i], torch.Tensor) and id(values[i]) not in owner._names]
        self.apart = [(name_of[id(values[i])], i, j) for i, _ in self.written for j in given if i != j]
        keep_inputs(model, read)
        if not any(id(value) in recipe.trained for _, _, value in bound):
            raise StepRefused("the loss depends on no parameter of the optimizer's")
        try:
            if self.is_parallel:
                draws = self.draws or any(map(draws_in_run, with_bodies(model.graph.node)))
                owner._ranks.refuse_parallel(bool(draws) and has_dtensors, bound[0][2].device)
            self.open(model, bound)
        except NotImplementedError as error:
            raise StepRefused(f"the step cannot be one program:\n{error}") from None
        except ValueError as error:  # StepRefused is none
            raise NotOpened(str(error)) from None
        self.dtype = self.loss.meta["val"].dtype

    def _written(self, values, names):
        """The placeholders of buffers that the program writes to; what it leaves in them, (name, node) each; and the batch
        norms whose statistics the session writes itself. Sets `counters`, the buffers that it does not know of."""
        trained = self.owner._recipe.trained
        kept = {id(b) for b in self.owner.module.buffers()}
        kept |= {id(p) for p in self.owner.module.parameters() if id(p) not in trained}  # a momentum encoder's
        written = {self.placeholders[position]: result for position, result in self.written}
        norms = {node for node in self.module.graph.nodes if leaves_statistics(node, written)}
        others = {self.loss, *(n for n, _ in self.outputs), *(n for n in written.values() if not (n.args and n.args[0] in norms))}
        norms &= set(needed(self.module, others, values=True))  # a model has no norm whose values nothing reads
        found, writes, self.counters = set(), [], []
        for position, result in self.written:
            node, value = self.placeholders[position], values[position]
            if (result.target == torch.ops.aten.add.Tensor and result.args[0] is node and isinstance(result.args[1], int)
                    and not result.kwargs):
                self.counters.append((position, result.args[1]))
                continue
            if is_dtensor(value):
                raise StepRefused(f"the step cannot be one program: it writes to {names[id(value)]}, which is a DTensor "
                                  f"(at {describe(result)})")
            if id(value) in trained:
                raise StepRefused(f"the step cannot be one program: it writes to {names[id(value)]}, which the optimizer trains "
                                  f"(at {describe(result)})")
            if value.is_complex():
                raise StepRefused(f"the step cannot be one program:\n  it writes to {names[id(value)]}, whose numbers are complex")
            if id(value) not in kept:
                self.arguments.append((position, result))
                continue
            found.add(node)
            if not (result.args and result.args[0] in norms):
                writes.append((names[id(value)], result))
        return found, writes, norms

    def _results(self):
        """The results that the call leaves in attributes and arguments: (name, node). Sets `kept`; `gives`, the functions that make
        Dynamo's outputs from the call's values (None: the loss); and `handed_back`, what is copied to which of these values."""
        self.kept, self.gives, made = {}, [], []

        def fixed(value, where="attribute"):
            if not all(type(d) is int for d in value.shape):
                raise StepRefused(f"the step cannot be one program:\n  it leaves in an {where} {value.dtype} {list(value.shape)}, "
                                  "a size that changes")
            return value

        def keep(name, node, value):
            made.append((name, node))
            self.kept[name] = torch.empty(value.shape, dtype=value.dtype)
            return self.kept[name]

        for i, (node, info) in enumerate(self.outputs):
            value = node.meta["val"] if isinstance(node, torch.fx.Node) else None
            if node is self.loss:
                self.gives.append(None)
            elif isinstance(value, torch.SymInt):
                kept = self.kept[f"result_{i}"] = torch.empty((), dtype=torch.int64)
                self.gives.append(lambda values, kept=kept: kept.item())
                made.append((f"result_{i}", node))
            elif info.output_type == OutputType.is_input:
                self.gives.append(lambda values, at=info.base_idx: values[at])
            elif value is None:
                self.gives.append(lambda values, constant=node: constant)
            elif info.output_type == OutputType.alias_of_input:
                self.gives.append(_view_of(info.base_idx, self.placeholders[info.base_idx].meta["val"], fixed(value)))
            else:
                kept = keep(f"result_{i}", node, fixed(value))
                self.gives.append(lambda values, kept=kept: kept.clone())
        self.handed_back = [(position, keep(f"argument_{position}", node, fixed(node.meta["val"], "argument")))
                            for position, node in self.arguments]
        return made


def _view_of(at, base, view):
    """A function that makes the view of a call's value `at` which the fake tensor `view` is of the fake tensor
    `base`."""
    size, stride, offset = view.size(), view.stride(), view.storage_offset() - base.storage_offset()

    def give(values):
        of = values[at].detach()
        return of.as_strided(size, stride, of.storage_offset() + offset)
    return give


def as_real(value):
    """A tensor as programs have it: of a DTensor the local part, complex numbers with their parts along a last axis, and an
    int as a scalar."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, device=CPU)
    value = held(value)
    return torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value


def draws_in_run(node: onnx.NodeProto) -> bool:
    """True if the node's result depends on the session's seed."""
    return node.op_type == "Dropout" or any(a.name == "random_stream" for a in node.attribute)


def calls_pytorch(model) -> list:
    """The operators of PyTorch's that the model's nodes call."""
    return sorted({a.s.decode() for node in with_bodies(model.graph.node) if node.domain == DOMAIN for a in node.attribute
                   if a.name == "operator"})


def keep_inputs(model, names):
    """Drops all inputs of the model except those with these names."""
    kept = [i for i in model.graph.input if i.name in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
