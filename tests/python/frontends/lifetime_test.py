# SPDX-License-Identifier: Apache-2.0
"""Tensors, modules, sessions, runs, threads and processes may end in any order, and no memory leaks."""

import ctypes
import gc
import threading

import onnx
import pytest
from onnx import helper, numpy_helper

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura import onnxruntime  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402

WIDTH = 1024  # a weight of 4 MiB: a leak shows in the process's memory


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.last(torch.nn.functional.gelu(self.first(x)))


def batch():
    return torch.randn(64, WIDTH), torch.randint(0, 4, (64,))


def model() -> bytes:
    """y = tanh(x w), with gradients of x and w."""
    weight = torch.randn(WIDTH, WIDTH)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    describe = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", WIDTH])  # noqa: E731
    graph = helper.make_graph(nodes, "g", [describe("x")], [describe("y")], [numpy_helper.from_array(weight.numpy(), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]).SerializeToString()


def gradients_of(module, x, y):
    """Returns PyTorch's own results."""
    module.zero_grad()
    torch.nn.functional.cross_entropy(module(x), y).backward()
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def same(module, expected):
    for name, p in module.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6)


# --- scenarios; each is run several times ---------------------------------------------------------------------

def tensors_outlive_modules():
    module, (x, y) = Net(), batch()
    expected = gradients_of(module, x, y)
    parameters = dict(module.named_parameters())
    module.zero_grad()
    loss = torch.nn.functional.cross_entropy(caesura.wrap(module)(x), y)
    del module
    torch._dynamo.reset()
    gc.collect()
    loss.backward()  # the graph holds everything that it needs
    for name, p in parameters.items():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6)


def outputs_outlive_sessions():
    session = onnxruntime.InferenceSession(model())
    (y,) = session.run(None, {"x": torch.ones(64, WIDTH)})
    kept = y.clone()
    del session
    gc.collect()
    assert torch.equal(y, kept)


def modules_outlive_tensors():
    module, (x, y) = Net(), batch()
    expected = gradients_of(module, x, y)
    wrapped = caesura.wrap(module)
    wrapped.zero_grad()
    out = wrapped(x)
    del x
    gc.collect()
    torch.randn(64, WIDTH)  # may reuse the memory of x
    torch.nn.functional.cross_entropy(out, y).backward()
    same(module, expected)


def an_exception_between_forward_and_backward():
    module, (x, y) = Net(), batch()
    expected = gradients_of(module, x, y)
    wrapped = caesura.wrap(module)
    for _ in range(3):
        try:
            out = wrapped(x)
            raise RuntimeError(out)
        except RuntimeError:
            del out
    wrapped.zero_grad()
    torch.nn.functional.cross_entropy(wrapped(x), y).backward()
    same(module, expected)


def a_run_dropped_between_forward_and_backward():
    split = caesura.SplitModule(model(), inputs=["x"])
    x = torch.randn(64, WIDTH)
    for _ in range(3):
        split.forward({"x": x})
    run = split.forward({"x": x})
    with pytest.raises(ValueError):
        run.backward([torch.ones(3)])
    del split
    gc.collect()
    gradients = run.backward([torch.ones(64, WIDTH)])
    assert gradients["x"].shape == x.shape and gradients["w"].shape == (WIDTH, WIDTH)


def a_module_dropped_mid_step():
    module, (x, y) = Net(), batch()
    optimizer = torch.optim.AdamW(module.parameters())
    step = caesura.compile_step(module, torch.nn.functional.cross_entropy, optimizer)
    first = step(x, y)
    del module, optimizer
    gc.collect()
    assert step(x, y) < first  # the step holds its module
    wrapped = caesura.wrap(Net())
    loss = wrapped(x).sum()
    del wrapped, step
    gc.collect()
    del loss  # no backward follows


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        x = torch.full((WIDTH,), float(i) / 32)
        return (x @ torch.ones(WIDTH, WIDTH)) / WIDTH, i % 4


def workers_are_forked_while_a_module_trains():
    module = caesura.wrap(Net())
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    torch.nn.functional.cross_entropy(module(torch.randn(8, WIDTH)), torch.zeros(8, dtype=torch.int64)).backward()
    steps = 0
    for x, y in torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        steps += 1
    assert steps == 4


def two_threads_train_two_modules():
    data, errors = [batch() for _ in range(2)], []
    steps = []
    for x, y in data:
        module = Net()
        step = caesura.compile_step(module, torch.nn.functional.cross_entropy, torch.optim.AdamW(module.parameters(), lr=1e-3))
        steps.append((step, step(x, y).item()))  # captures run one after the other, because Dynamo has one lock

    def train(i):
        try:
            step, first = steps[i]
            for _ in range(10):
                last = step(*data[i]).item()
            assert last < first
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            errors.append(error)

    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not errors, errors


SCENARIOS = [tensors_outlive_modules, outputs_outlive_sessions, modules_outlive_tensors,
             an_exception_between_forward_and_backward, a_run_dropped_between_forward_and_backward,
             a_module_dropped_mid_step, workers_are_forked_while_a_module_trains, two_threads_train_two_modules]


def live_tensors() -> int:
    """Counts real tensors. AOT autograd keeps fake ones, with any backend, until a graph's backward is compiled."""
    return sum(isinstance(o, torch.Tensor) and not isinstance(o, FakeTensor) and o.numel() > 0 for o in gc.get_objects())


def resident() -> int:
    """Returns the bytes of this process's memory, without the C library's free memory."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def run(scenario):
    torch.manual_seed(0)
    scenario()
    torch._dynamo.reset()
    gc.collect()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_nothing_stays_behind(scenario):
    for _ in range(2):
        run(scenario)
    tensors, memory = live_tensors(), resident()
    for _ in range(5):
        run(scenario)
    assert live_tensors() <= tensors
    # Five leaked weights would be 20 MiB; PyTorch's own captures leave up to 2 MiB each.
    assert resident() < memory + (16 << 20), f"{(resident() - memory) >> 20} MiB"
