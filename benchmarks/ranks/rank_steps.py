# SPDX-License-Identifier: Apache-2.0
"""Steps of many ranks in virtual time: what rank_model.py predicts from, whose help has the formulas."""

import dataclasses
import math

UPDATE_BYTES = 28  # AdamW reads the gradient, reads and writes the parameter and two moments, each of 4 bytes
AGREE_BYTES = 16   # two words of each rank, before the first write


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder-only transformer, and the batch of one rank."""

    layers: int
    width: int
    sequence: int
    batch: int
    vocabulary: int
    hidden: int = 0       # of the MLP; 0: four times the width
    key_values: int = 0   # width of keys and values; 0: the width
    gated: bool = False   # an MLP of three matrices
    tied: bool = True     # the head's weight is the token table's

    @property
    def parameters(self):
        attention = 2 * self.width * (self.width + (self.key_values or self.width))
        mlp = (3 if self.gated else 2) * self.width * (self.hidden or 4 * self.width)
        return self.layers * (attention + mlp) + self.table * (1 if self.tied else 2)

    @property
    def table(self):
        return self.vocabulary * self.width

    @property
    def tokens(self):
        return self.batch * self.sequence

    @property
    def flops(self):
        """The operations of a step: six for each parameter that multiplies, and attention over the whole sequence."""
        multiplied = self.parameters - (0 if self.tied else self.table)
        return self.tokens * (6 * multiplied + 12 * self.layers * self.width * self.sequence)

    @property
    def activation_bytes(self):
        """34 bytes a token, layer and unit of width in 16-bit types (Korthikanti et al.: Reducing Activation
        Recomputation in Large Transformer Models, 2022), without the matrix of attention, which fused kernels do not
        keep; 4 bytes a logit."""
        return self.tokens * (34 * self.layers * self.width + 4 * self.vocabulary)


@dataclasses.dataclass(frozen=True)
class Gpu:
    tflops: float
    memory_rate: float  # GB/s
    memory: float       # GB


@dataclasses.dataclass(frozen=True)
class Link:
    """Latencies in microseconds, rates in GB/s."""

    node_ranks: int
    node_latency: float
    node_rate: float
    latency: float  # between nodes
    rate: float     # of one network adapter
    adapters: int   # of a node
    ring_adapters: int  # those that the rings of one exchange use

    def nodes(self, ranks):
        return math.ceil(ranks / self.node_ranks)

    def hops(self, local, across):
        return 1e-6 * (local * self.node_latency + across * self.latency)

    def bytes_per_second(self, ranks):
        across = self.ring_adapters * self.rate
        return 1e9 * (self.node_rate if ranks <= self.node_ranks else min(self.node_rate, across))


@dataclasses.dataclass(frozen=True)
class Exchange:
    """How gradients and parameters travel.

    kind: "all_reduce"; "shard", caesura's shard=1; "logical_shards", with one shard a rank; "fully_shard", PyTorch's,
    which gathers parameters in the forward and in the backward; "shard_grad_op", which gathers them in the forward
    only.
    """

    kind: str
    gradient_bytes: int = 4   # of an element on the link
    parameter_bytes: int = 4  # likewise, where parameters are gathered
    bucket: float = 4         # MiB
    overlaps: bool = True     # False: the exchange begins after the backward


def ring_all_reduce(size, ranks, link):
    """(latency, transfer) in seconds, as of the other formulas."""
    nodes, rate = link.nodes(ranks), link.bytes_per_second(ranks)
    return link.hops(2 * (ranks - nodes), 2 * (nodes - 1)), 2 * (ranks - 1) / ranks * size / rate


def tree_all_reduce(size, ranks, link):
    nodes, rate = link.nodes(ranks), link.bytes_per_second(ranks)
    return link.hops(2 * (math.ceil(ranks / nodes) - 1), 2 * int(math.log2(nodes))), 2 * size / rate


def ring_pass(size, ranks, link):
    """A reduce-scatter or an all-gather of a block of `size` bytes."""
    return tuple(part / 2 for part in ring_all_reduce(size, ranks, link))


def all_to_all(size, ranks, link):
    local = min(ranks, link.node_ranks) - 1
    across, part = ranks - 1 - local, size / ranks
    share = 1e9 * link.rate * link.adapters / link.node_ranks
    return link.hops(local, across), local * part / (1e9 * link.node_rate) + across * part / share


def exchange_cost(kind, size, ranks, link):
    """(latency, transfer, bytes that each rank sends) of one exchange of a block of `size` bytes."""
    if ranks == 1:
        return 0.0, 0.0, 0.0
    once = (ranks - 1) / ranks * size
    if kind == "all_reduce":
        return *min(ring_all_reduce(size, ranks, link), tree_all_reduce(size, ranks, link), key=sum), 2 * once
    return *{"pass": ring_pass, "all_to_all": all_to_all}[kind](size, ranks, link), once


class Wire:
    """A rank's link in virtual time: exchanges go one after the other, in the order in which they start."""

    def __init__(self, ranks, link):
        self._ranks, self._link, self._free = ranks, link, 0.0
        self.latency = self.transfer = self.sent = 0.0

    def start(self, kind, size, now):
        """Starts an exchange at the time `now`; returns the time of its end."""
        latency, transfer, sent = exchange_cost(kind, size, self._ranks, self._link)
        self.latency += latency
        self.transfer += transfer
        self.sent += sent
        self._free = max(self._free, now) + latency + transfer
        return self._free


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of the parts of a step that compute."""

    forward: float
    backward: float
    update: float
    memory_rate: float  # bytes a second


def buckets(exchange, element_bytes, parameters):
    """The number of buckets, and the bytes of each."""
    count = max(1, math.ceil(parameters * element_bytes / (exchange.bucket * 2**20)))
    return count, parameters * element_bytes / count


def step_all_reduce(wire, exchange, times, model, ranks):
    count, size = buckets(exchange, exchange.gradient_bytes, model.parameters)
    computed = times.forward + times.backward
    end = computed
    for k in range(count):
        ready = times.forward + times.backward * (k + 1) / count if exchange.overlaps else computed
        end = wire.start("all_reduce", size, ready)
    return wire.start("pass", AGREE_BYTES * ranks, max(computed, end)) + times.update


def step_shard(wire, exchange, times, model, ranks):
    """A bucket's sum is waited for before the next one begins; each gather but the last overlaps with an update."""
    count, size = buckets(exchange, exchange.gradient_bytes, model.parameters)
    now, end = times.forward, 0.0
    for _ in range(count):
        now = max(now + times.backward / count, end)
        end = wire.start("pass", size, now)
    now = wire.start("pass", AGREE_BYTES * ranks, max(now, end))
    gathered = model.parameters * exchange.parameter_bytes / count
    for _ in range(count):
        now = max(now + times.update / ranks / count, end)
        end = wire.start("pass", gathered, now)
    return max(now, end)


def step_logical_shards(wire, exchange, times, model, ranks):
    """Parts are exchanged during the backward; they are summed and gathered after it."""
    count, size = buckets(exchange, exchange.gradient_bytes, model.parameters)
    ends = [wire.start("all_to_all", size, times.forward + times.backward * (k + 1) / count) for k in range(count)]
    now = times.forward + times.backward
    for end in ends:
        summed = max(now, end) + size * (1 + 1 / ranks) / times.memory_rate
        now = wire.start("pass", size, summed)
    return wire.start("pass", AGREE_BYTES * ranks, now) + times.update


def step_fully_shard(wire, exchange, times, model, ranks):
    """A layer's parameters are gathered while the layer before computes, its gradients scattered while the next one
    does."""
    layers, gathers_twice = model.layers, exchange.kind == "fully_shard"
    gathered = model.parameters * exchange.parameter_bytes / layers
    scattered = model.parameters * exchange.gradient_bytes / layers
    now, arrived = 0.0, wire.start("pass", gathered, 0.0)
    for layer in range(layers):
        now = max(now, arrived)
        if layer + 1 < layers:
            arrived = wire.start("pass", gathered, now)
        now += times.forward / layers
    end = now
    for layer in range(layers):
        now = max(now, arrived)
        if gathers_twice and layer + 1 < layers:  # the last layer is still there from the forward
            arrived = wire.start("pass", gathered, now)
        now += times.backward / layers
        end = wire.start("pass", scattered, now)
    return max(now, end) + times.update / ranks


STEPS = {"all_reduce": step_all_reduce, "shard": step_shard, "logical_shards": step_logical_shards,
         "fully_shard": step_fully_shard, "shard_grad_op": step_fully_shard}


def state_bytes(exchange, parameters, ranks):
    """Parameters, optimizer state and gradients of a rank, as TrainingSession.memory has them (float32, AdamW)."""
    part = 1 / ranks if ranks > 1 else 1
    count, size = buckets(exchange, 4, parameters)
    under_way = size * min(2, count)
    return {
        "all_reduce": 16 * parameters + (2 * parameters if exchange.gradient_bytes == 2 and ranks > 1 else 0),
        "shard": 4 * parameters + 12 * parameters * part + (under_way if ranks > 1 else 0),
        "logical_shards": (20 if ranks > 1 else 16) * parameters,
        "fully_shard": 16 * parameters * part,
        "shard_grad_op": 16 * parameters * part + exchange.parameter_bytes * parameters,
    }[exchange.kind]


def predict(model, gpu, link, exchange, ranks, efficiency, compute_seconds=None):
    """The cost of a step on `ranks` ranks, as a dict of seconds and bytes. `compute_seconds` is a measured step of one
    rank, which takes the place of the GPU's peak and `efficiency`."""
    if exchange.kind not in STEPS:
        raise ValueError(f"exchange: expected one of {', '.join(STEPS)}, got {exchange.kind!r}")
    parameters = model.parameters
    update = 0.0 if compute_seconds else UPDATE_BYTES * parameters / (1e9 * gpu.memory_rate)
    compute = compute_seconds or model.flops / (1e12 * gpu.tflops * efficiency)
    times = Times(compute / 3, 2 * compute / 3, update, 1e9 * gpu.memory_rate)
    alone = compute + update
    wire, step = Wire(ranks, link), alone
    if ranks > 1:
        step = STEPS[exchange.kind](wire, exchange, times, model, ranks)
    own_update = update if exchange.kind in ("all_reduce", "logical_shards") else update / ranks
    return {"ranks": ranks, "step": step, "compute": compute, "update": own_update, "sent_bytes": wire.sent,
            "latency": wire.latency, "transfer": wire.transfer, "not_overlapped": step - compute - own_update,
            "scaling": alone / step, "tokens_per_second": model.tokens / step,
            "state_bytes": state_bytes(exchange, parameters, ranks), "activation_bytes": model.activation_bytes}


def fitted_efficiency(model, gpu, link, exchange, ranks, tokens_per_second):
    """The share of the GPU's peak at which the model takes the published time at `ranks`."""
    low, high = 1e-3, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        slower = predict(model, gpu, link, exchange, ranks, middle)["tokens_per_second"] < tokens_per_second
        low, high = (middle, high) if slower else (low, middle)
    return (low + high) / 2
