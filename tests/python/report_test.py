# SPDX-License-Identifier: Apache-2.0
"""Report pages: their data say what was run, and in a headless Chromium they show it, by pointer and by keyboard."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess

import numpy as np
import onnx
import pytest
import torch

import caesura

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
SECTIONS = ["summary", "try", "curves", "timeline", "memory", "graph", "shapes", "fallbacks", "facts"]
HOSTILE = "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>{{data}}"
MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[N,3] x) => (float[N,2] y)
<float[3,4] w = {1, -1, 2, 0.5, 0.25, -2, 1, 1, 1, 0, 1, 2}, float[4,2] v = {1, 2, 3, 4, 5, 6, 7, 8}>
{ h = MatMul (x, w) r = Relu (h) y = MatMul (r, v) }"""
FEEDS = {"x": np.ones((4, 3), np.float32), "target": np.array([0, 1, 1, 0])}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(self.norm(x))


def data_of(path) -> dict:
    text = path.read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def ops_of(data) -> list:
    return [step["op"] for run in data["runs"] for step in run["steps"]]


@pytest.fixture(scope="module", name="page")
def _page(tmp_path_factory):
    """The page of a session that has run a while, whose model and title have names that look like HTML."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    model = onnx.parser.parse_model(MODEL)
    model.graph.node[0].name = HOSTILE
    model.graph.node[1].metadata_props.add(key="ai.caesura.source", value="/home/me/net.py:12 in forward")
    session = caesura.TrainingSession(model.SerializeToString(), optimizer=caesura.optim.AdamW(lr=0.1),
                                      schedule="linear", total_steps=40)
    losses = [session.step(FEEDS) for _ in range(19)]
    losses.append(session.report(path, FEEDS, title=HOSTILE))
    return path, losses


def test_a_session_reports_its_steps(page):
    path, losses = page
    data = data_of(path)
    points = data["curves"]["points"]
    assert [p[0] for p in points] == [*range(1, 21)]
    np.testing.assert_allclose([p[1] for p in points], losses, rtol=1e-12)
    np.testing.assert_allclose([p[2] for p in points], [0.1 * (1 - i / 40) for i in range(20)], rtol=1e-12)
    assert data["title"] == HOSTILE
    steps, memory = data["runs"][0]["steps"], data["runs"][0]["memory"]
    assert {"MatMul", "AdamWUpdate"} <= {step["op"] for step in steps}
    assert {step["phase"] for step in steps} == {"forward", "backward", "optimizer"}
    assert all(step["us"] >= 0 for step in steps)
    assert len(memory["samples"]) == len(steps) and memory["largest"]
    peak = memory["samples"][memory["peak"]]
    assert sum(peak[1:]) == max(sum(sample[1:]) for sample in memory["samples"])
    assert any(step.get("source") == "/home/me/net.py:12 in forward" for step in steps)


def test_a_reported_step_trains_as_any_other(tmp_path):
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    plain, reported = (caesura.TrainingSession(model, optimizer=caesura.optim.SGD(lr=0.1)) for _ in range(2))
    assert plain.step(FEEDS) == reported.report(tmp_path / "a.html", FEEDS)
    for name, value in plain.parameters().items():
        np.testing.assert_array_equal(reported.parameters()[name], value)
    with pytest.raises(OSError):
        reported.report(tmp_path / "none" / "a.html", FEEDS)


def test_a_compiled_step_reports_its_lines(tmp_path):
    torch.manual_seed(0)
    module = Net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    step = caesura.compile_step(module, torch.nn.functional.cross_entropy, optimizer)
    x, target = torch.randn(5, 8), torch.randint(4, (5,))
    losses = [step(x, target) for _ in range(3)] + [step.report(tmp_path / "a.html", x, target)]
    data = data_of(tmp_path / "a.html")
    np.testing.assert_allclose([p[1] for p in data["curves"]["points"][-4:]], torch.stack(losses).numpy(), rtol=1e-6)
    np.testing.assert_allclose(data["curves"]["points"][-1][2], 0.01)
    assert len(data["runs"]) == 1 and data["title"] == "Net"
    line = Net.forward.__code__.co_firstlineno
    lines = {step.get("source", "").partition(" in ")[0] for step in data["runs"][0]["steps"]}
    assert {f"{__file__}:{line + 1}", f"{__file__}:{line + 2}"} <= lines
    backward = [step.get("source", "") for step in data["runs"][0]["steps"] if step["phase"] == "backward"]
    assert any(source.startswith(__file__) for source in backward)


def test_a_profile_of_a_wrapped_module(tmp_path):
    module = caesura.wrap(Net())
    x = torch.randn(5, 8)
    module(x).sum().backward()
    with caesura.profile(tmp_path / "a.html", title="forward and backward"):
        module(x).sum().backward()
    module(x)  # recorded by nobody
    data = data_of(tmp_path / "a.html")
    assert len(data["runs"]) == 2 and data["title"] == "forward and backward"
    assert any(op.startswith(("MatMul", "Gemm", "FusedMatMul")) for op in ops_of(data))
    assert all(any(step.get("source", "").startswith(__file__) for step in run["steps"]) for run in data["runs"])
    assert [{step["phase"] for step in run["steps"]} for run in data["runs"]] == [{"forward"}, {"backward"}]
    with pytest.raises(ValueError, match="already"):
        with caesura.profile(tmp_path / "b.html"):
            with caesura.profile(tmp_path / "c.html"):
                pass
    with pytest.raises(ZeroDivisionError), caesura.profile(tmp_path / "d.html"):
        raise ZeroDivisionError
    assert not (tmp_path / "b.html").exists() and not (tmp_path / "d.html").exists()
    with caesura.profile(tmp_path / "e.html"):  # none is left that records
        pass
    assert data_of(tmp_path / "e.html")["runs"] == []


def test_phases_of_torch_compile_and_of_calls_without_gradients(tmp_path):
    compiled, x = torch.compile(Net(), backend="caesura"), torch.randn(5, 8)
    compiled(x).sum().backward()
    with torch.no_grad():
        compiled(x)
    with caesura.profile(tmp_path / "a.html"):
        compiled(x).sum().backward()
        with torch.no_grad():
            compiled(x)
    phases = [{step["phase"] for step in run["steps"]} for run in data_of(tmp_path / "a.html")["runs"]]
    assert phases == [{"forward"}, {"backward"}, {"forward"}]


def test_what_fell_back_is_told(tmp_path):
    caesura.reports.reset()

    class Sorts(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.svdvals(x).sum() + x.exp().sum()

    module = caesura.wrap(Sorts())
    with pytest.warns(caesura.FallbackWarning), caesura.profile(tmp_path / "a.html"):
        module(torch.rand(6, 6))
    data = data_of(tmp_path / "a.html")
    assert any("svd" in row["op"] and row["reason"] and row["places"] for row in data["fallbacks"])
    assert data["seconds"][1] > 0


class Browser:
    """A headless Chromium with one page, by its DevTools protocol over two pipes: messages of JSON, each ended by a 0."""

    def __init__(self, folder):
        def numbered_high(descriptor):  # neither 3 nor 4
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
            os.close(descriptor)
            return high

        to, self._to = map(numbered_high, os.pipe())
        self._from, back = map(numbered_high, os.pipe())
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
        # Chromium reads from descriptor 3 and writes to 4.
        script = f'exec "$0" "$@" 3<&{to} 4>&{back} {to}<&- {back}>&-'
        command = ["bash", "-c", script, CHROMIUM, *flags, "--remote-debugging-pipe", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, pass_fds=(to, back), **quiet)
        os.close(to)
        os.close(back)
        self._buffer, self._count, self._session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self._session = None
        with contextlib.suppress(OSError):
            self.call("Browser.close")
        self._process.wait(timeout=30)
        os.close(self._to)
        os.close(self._from)

    def _read(self):
        while b"\0" not in self._buffer:
            part = os.read(self._from, 1 << 16)
            if not part:
                raise OSError("Chromium has ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width=1280, height=900):
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 500)
        self.call("Page.navigate", url=path.as_uri())
        while not self.told("Page.loadEventFired"):
            self.events.append(self._read())
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # charts are drawn

    def run(self, script):
        """The value of an expression, awaited where it is a promise."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def unfold(self):
        self.click("#graph-open")
        self.run("new Promise(done => setTimeout(done, 100))")  # folds draw what is in them when they are opened

    def told(self, method):
        return [event for event in self.events if event.get("method") == method]

    def press(self, key):
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36, " ": 32}[key]
        text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def click(self, selector):
        box = self.run(f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}}); "
                       "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def text(self, selector):
        return self.run(f"document.querySelector({selector!r}).textContent")


@pytest.fixture(scope="module", name="browser")
def _browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


def focused(browser):
    return browser.run("(e => e.id || e.getAttribute('href') || e.tagName)(document.activeElement)")


def test_the_page_is_whole_and_asks_nobody(browser, page):
    browser.open(page[0])
    assert browser.run("[...document.querySelectorAll('main > section')].map(s => s.id)") == SECTIONS
    assert browser.run("[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))") == [f"#{s}" for s in SECTIONS]
    assert browser.run("document.querySelectorAll('svg').length") >= 4
    requests = [event["params"]["request"]["url"] for event in browser.told("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [page[0].as_uri()]
    assert not browser.told("Runtime.exceptionThrown") and not browser.told("Log.entryAdded")


def test_names_are_text_whatever_they_hold(browser, page):
    browser.open(page[0])
    browser.unfold()
    assert browser.run("typeof window.attacked") == "undefined"
    assert browser.text("#title") == HOSTILE
    assert HOSTILE in browser.text("#graph-groups")
    assert browser.run("document.title").startswith(HOSTILE)
    assert browser.run("document.images.length") == 0


def test_the_keyboard_reaches_everything(browser, page):
    browser.open(page[0])
    seen = []
    for _ in range(60):
        browser.press("Tab")
        seen.append(focused(browser))
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none", seen
        if seen[-1] == "SUMMARY":
            break
    assert seen[0] == "#main" and seen[1:10] == [f"#{s}" for s in SECTIONS]
    for place in ("strip", "memory-chart", "graph-filter", "graph-open", "SUMMARY"):
        assert place in seen
    before = browser.run("document.activeElement.parentElement.open")
    for key in ("Enter", " "):
        browser.press(key)
        browser.run("new Promise(done => setTimeout(done, 50))")
        assert browser.run("document.activeElement.parentElement.open") is not before
        before = not before
    assert browser.run("document.activeElement.parentElement.querySelectorAll('li').length") > 0


def test_arrow_keys_walk_along_the_steps(browser, page):
    browser.open(page[0])
    count = len(ops_of(data_of(page[0])))
    browser.run("document.getElementById('strip').focus()")
    said = []
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home"):
        browser.press(key)
        said.append(int(browser.run("document.getElementById('strip').ariaValueNow")))
    assert said == [1, 2, count, count - 1, 1]
    assert ops_of(data_of(page[0]))[0] in browser.run("document.getElementById('strip').ariaValueText")
    assert browser.run("document.querySelectorAll('#strip .cursor').length") == 1
    browser.run("document.querySelector('#curves .chart').focus()")
    browser.press("End")
    shown = browser.text("#curves .readout")
    update, loss = re.match(r"Update (\d+): .*, loss ([\d.]+)$", shown).groups()
    assert int(update) == 20 and float(loss) == pytest.approx(page[1][-1], rel=1e-4)


def test_tables_sort_and_the_graph_filters(browser, page):
    browser.open(page[0])
    column = "[...document.querySelector('#timeline tbody').rows].map(r => r.cells[{}].textContent)"
    browser.click("#timeline table th:nth-child(4) button")
    calls = [int(c) for c in browser.run(column.format(3))]
    assert calls == sorted(calls, reverse=True)
    assert browser.run("document.querySelector('#timeline th:nth-child(4)').ariaSort") == "descending"
    browser.click("#timeline table th:nth-child(1) button")
    names = browser.run(column.format(0))
    assert names == sorted(names) and len(names) > 3
    everything = browser.run("document.querySelectorAll('#graph-groups > details').length")
    browser.click("#graph-filter")
    browser.call("Input.insertText", text="adamw")
    browser.unfold()
    assert 0 < browser.run("document.querySelectorAll('#graph-groups > details').length") < everything
    shown = browser.run("[...document.querySelectorAll('#graph-groups li strong')].map(s => s.textContent)")
    assert shown and all(op.startswith("AdamW") for op in shown)


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_fits_its_width(browser, page, width):
    browser.open(page[0], width=width)
    browser.unfold()
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("[...document.querySelectorAll('.chart svg')].every(s => s.clientWidth <= innerWidth)")


def test_programs_of_a_wrapped_module_are_named_by_their_phase(browser, tmp_path):
    module, x = caesura.wrap(Net()), torch.randn(5, 8)
    module(x).sum().backward()
    with caesura.profile(tmp_path / "a.html"):
        module(x).sum().backward()
    browser.open(tmp_path / "a.html")
    names = browser.run("[...document.querySelectorAll('#graph-groups h3')].map(h => h.textContent.split(':')[0])")
    assert names == ["Program 1 of 2, forward", "Program 2 of 2, backward"]
    assert browser.run("[...document.querySelectorAll('#timeline .legend > *')].map(e => e.textContent)") == ["forward", "backward"]


def test_dark_and_light(browser, page):
    colors = []
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.open(page[0])
        colors.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert colors == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]
