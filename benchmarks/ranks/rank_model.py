# SPDX-License-Identifier: Apache-2.0
"""A model of the cost of many ranks: bytes, latency, overlap, time and memory of data-parallel steps, by arithmetic.

    python benchmarks/ranks/rank_model.py                     the scenarios of rank_scenarios.json, as Markdown tables
    python benchmarks/ranks/rank_model.py --json benchmarks/results/rank_costs.json && python docs/make_tables.py
                                                        the same for the page docs/measurements/rank_costs.md
    python benchmarks/ranks/rank_model.py --layers 12 --width 768 --batch 8 --ranks 2 16 --rate 3 --ring-adapters 1
                                                        a model and a network of your own

Nothing is measured here. A step is a forward, a backward of twice its time, and an update that moves 28 bytes a
parameter (AdamW in float32). Their times follow from the GPU's peak and a share of it that the caller assumes.
Gradients become ready evenly over the backward, in buckets. A rank's exchanges go one after the other.

The time of an exchange of S bytes among n ranks on m nodes is latency + transfer:

    all-reduce, ring               2 (n - m) a + 2 (m - 1) A              2 (n - 1) / n S / B
    all-reduce, tree               2 (n / m - 1) a + 2 floor(log2 m) A    2 S / B
    reduce-scatter, all-gather     (n - m) a + (m - 1) A                  (n - 1) / n S / B
    all-to-all                     a or A for each of n - 1 messages      of S / n, those across nodes over the rank's
                                                                          share of its node's adapters

a, A: latency of a hop within a node, between nodes. B: the rate within a node, and across nodes the rate of one adapter
times the adapters that the rings use, if that is less. On one level (nodes of one rank) the ring formulas are those of
CollectiveSeconds in core/distributed/simulated_communicator.h (Thakur, Rabenseifner, Gropp: Optimization of Collective
Communication Operations in MPICH, 2005). The split of hops over two levels and the tree's latency are those of NCCL's
src/graph/tuning.cc; the tree's transfer is that of two trees (Sanders, Speck, Traff: Two-Tree Algorithms for Full
Bandwidth Broadcast, Reduction and Scan, 2009). An all-reduce takes the faster of the two, as NCCL does.
"""

import argparse
import dataclasses
import json
import pathlib

from markdown_table import header, row
from rank_steps import STEPS, Exchange, Gpu, Link, Model, fitted_efficiency, predict, state_bytes

SCENARIOS = pathlib.Path(__file__).with_name("rank_scenarios.json")


class Scenarios:
    """The parameters of rank_scenarios.json."""

    def __init__(self, path=SCENARIOS):
        self.given = json.loads(path.read_text())
        self.models = {name: Model(**fields) for name, fields in self.given["models"].items()}
        self.gpus = {name: Gpu(**fields) for name, fields in self.given["gpus"].items()}
        self.links = {name: Link(**fields) for name, fields in self.given["links"].items()}

    def costs(self):
        for case in self.given["costs"]:
            model, gpu, link = self.models[case["model"]], self.gpus[case["gpu"]], self.links[case["link"]]
            for name, fields in case["exchanges"].items():
                for ranks in case["ranks"]:
                    found = predict(model, gpu, link, Exchange(**fields), ranks, case["efficiency"],
                                    case.get("compute_seconds"))
                    yield {"model": case["model"], "exchange": name, "gpu_memory": 1e9 * gpu.memory, **found}

    def comparisons(self):
        """Published rows beside predictions. A case's first row fixes the share of the peak; the others are predicted
        from it, with each of the case's links."""
        for case in self.given["comparisons"]:
            model, gpu = dataclasses.replace(self.models[case["model"]], batch=case["batch"]), self.gpus[case["gpu"]]
            exchange, (first, *others) = Exchange(**case["exchange"]), case["rows"]
            fitted = []
            for link in (self.links[name] for name in case["links"]):
                given = (model, gpu, link, exchange)
                efficiency = case.get("efficiency") or fitted_efficiency(*given, first["ranks"], first["value"])
                steps = {r["ranks"]: predict(*given, r["ranks"], efficiency)["step"] for r in case["rows"]}
                fitted.append({ranks: first["value"] * steps[first["ranks"]] / step for ranks, step in steps.items()})
            for published in others:
                yield {"case": case["name"], "unit": case["unit"],
                       "fixed": f"{figure(first['value'])} at {first['ranks']}", "ranks": published["ranks"],
                       "published": published["value"],
                       "predicted": [values[published["ranks"]] for values in fitted]}

    def measured(self):
        """Steps that were measured on slow links beside predictions, which take compute and the link's rate from the
        same measurement."""
        gpu = next(iter(self.gpus.values()))  # its peak and memory have no part in it
        for case in self.given["measured"]:
            step = predict(self.models[case["model"]], gpu, self.links[case["link"]], Exchange(**case["exchange"]),
                           case["ranks"], 1, case["compute_seconds"])["step"]
            yield {"case": f"{case['name']}, {case['link']}", "unit": "ms a step", "fixed": "compute, all-reduce",
                   "ranks": case["ranks"], "published": 1e3 * case["step_seconds"], "predicted": [1e3 * step]}

    def memory(self):
        """Published peaks beside the first row's peak with the state of other numbers of ranks."""
        for case in self.given["memory"]:
            first, *others = case["rows"]
            exchange, parameters = Exchange(**case["exchange"]), self.models[case["model"]].parameters
            states = {r["ranks"]: state_bytes(exchange, parameters, r["ranks"]) for r in case["rows"]}
            for published in others:
                less = (states[first["ranks"]] - states[published["ranks"]]) / 2**30
                yield {"case": case["name"], "ranks": published["ranks"], "published": published["gib"], "fixed": first,
                       "predicted": first["gib"] - less}

    def results(self):
        return {"parameters": self.given, "costs": list(self.costs()),
                "comparisons": [*self.comparisons(), *self.measured()], "memory": list(self.memory())}


def seconds(value):
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms" if value >= 1e-3 else f"{1e6 * value:.0f} us"


def figure(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def parameter_table(results):
    """Prints the models, GPUs and links that the predictions stand on."""
    given = results["parameters"]
    text = header(["model", "layers", "width", "tokens of a rank's batch", "parameters"])
    for name, fields in given["models"].items():
        model = Model(**fields)
        text += row([name, str(model.layers), str(model.width), f"{model.batch} x {model.sequence}",
                     f"{model.parameters / 1e9:.3g} G"])
    text += "\n" + header(["GPU", "16-bit peak", "memory", "its rate"])
    for name, f in given["gpus"].items():
        text += row([name, f"{f['tflops']:g} TFLOP/s", f"{f['memory']:g} GB", f"{f['memory_rate']:,g} GB/s"])
    text += "\n" + header(["link", "ranks a node", "within a node", "between nodes", "adapters a node",
                           "used by rings"])
    for name, f in given["links"].items():
        near = f"{f['node_latency']:g} us, {f['node_rate']:g} GB/s" if f["node_ranks"] > 1 else ""
        text += row([name, str(f["node_ranks"]), near, f"{f['latency']:g} us, {f['rate']:g} GB/s each",
                     str(f["adapters"]), str(f["ring_adapters"])])
    return text


def cost_table(results):
    text = ""
    for case in results["parameters"]["costs"]:
        rows = [r for r in results["costs"] if r["model"] == case["model"]]
        share = "measured" if case.get("compute_seconds") else f"{case['efficiency']:.0%} of the peak"
        text += (f"{case['model']} on {case['gpu']}, {case['link']}; a rank computes for "
                 f"{seconds(rows[0]['compute'])} ({share}):\n\n")
        text += header(["exchange", "ranks", "sent a rank", "latency", "transfer", "not overlapped", "step", "scaling",
                        "state", "with activations"])
        for r in rows:
            whole = r["state_bytes"] + r["activation_bytes"]
            text += row([r["exchange"], f"{r['ranks']:,}", f"{r['sent_bytes'] / 1e9:.1f} GB",
                         *(seconds(r[part]) for part in ("latency", "transfer", "not_overlapped", "step")),
                         f"{r['scaling']:.1%}", f"{r['state_bytes'] / 1e9:.1f} GB",
                         f"{whole / 1e9:.1f} GB" + (": too much" if whole > r["gpu_memory"] else "")])
        text += "\n"
    return text


def comparison_table(results):
    def off(predicted, published):
        return f"{predicted / published - 1:+.1%}"

    text = header(["published or measured", "unit", "fixed by", "ranks", "published", "predicted", "off by"])
    for r in results["comparisons"]:
        text += row([r["case"], r["unit"], r["fixed"], str(r["ranks"]), figure(r["published"]),
                     " to ".join(map(figure, r["predicted"])),
                     " to ".join(off(p, r["published"]) for p in r["predicted"])])
    text += "\n" + header(["memory of a rank", "fixed by", "ranks", "published", "predicted", "off by"])
    for r in results["memory"]:
        text += row([r["case"], f"{r['fixed']['gib']:.1f} GiB at {r['fixed']['ranks']}", str(r["ranks"]),
                     f"{r['published']:.1f} GiB", f"{r['predicted']:.1f} GiB", off(r["predicted"], r["published"])])
    return text


TABLES = {"rank parameters": parameter_table, "rank costs": cost_table, "rank comparison": comparison_table}


def with_options(scenarios, options):
    """Leaves one case, whose model, GPU and link are the first ones of the scenarios with the fields that the options
    give."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    chosen = {}
    for kind, known in ((Model, scenarios.models), (Gpu, scenarios.gpus), (Link, scenarios.links)):
        named = {f.name: given[f.name] for f in dataclasses.fields(kind) if f.name in given}
        chosen[kind] = dataclasses.replace(next(iter(known.values())), **named)
    scenarios.models, scenarios.gpus = {"model": chosen[Model]}, {"GPU": chosen[Gpu]}
    scenarios.links = {"link": chosen[Link]}
    exchanges = {f"{kind}, buckets of {options.bucket:g} MiB":
                 {"kind": kind, "gradient_bytes": options.gradient_bytes, "bucket": options.bucket}
                 for kind in options.exchange}
    scenarios.given = {
        "models": {"model": dataclasses.asdict(chosen[Model])}, "gpus": {"GPU": dataclasses.asdict(chosen[Gpu])},
        "links": {"link": dataclasses.asdict(chosen[Link])}, "comparisons": [], "measured": [], "memory": [],
        "costs": [{"model": "model", "gpu": "GPU", "link": "link", "efficiency": options.efficiency,
                   "compute_seconds": options.compute_seconds, "ranks": options.ranks, "exchanges": exchanges}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="writes the results to this file, too")
    own = parser.add_argument_group("a case of your own", "Any of these leaves out the scenarios; a field that is not "
                                    "given is that of the first model, GPU or link in rank_scenarios.json.")
    for kind, about in ((Model, "of the model"), (Gpu, "of the GPU"), (Link, "of the link (us, GB/s)")):
        for field in (f for f in dataclasses.fields(kind) if f.type is not bool):
            own.add_argument(f"--{field.name.replace('_', '-')}", type=field.type, help=about)
    own.add_argument("--efficiency", type=float, default=0.4, help="share of the GPU's peak that a step reaches")
    own.add_argument("--compute-seconds", type=float,
                     help="a measured step of one rank with its update, in place of the GPU's figures")
    own.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024])
    own.add_argument("--exchange", nargs="+", choices=tuple(STEPS), default=["all_reduce", "shard"])
    own.add_argument("--bucket", type=float, default=64,
                     help="MiB; caesura's default is 4 (bucket_bytes)")
    own.add_argument("--gradient-bytes", type=int, choices=(2, 4), default=4, help="of an element on the link")
    options, scenarios = parser.parse_args(), Scenarios()
    is_own = any(getattr(options, a.dest) != a.default for a in own._group_actions)
    if is_own:
        with_options(scenarios, options)
    results = scenarios.results()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    for name, table in TABLES.items():
        if not is_own or name != "rank comparison":
            print(f"{table(results)}")


if __name__ == "__main__":
    main()
