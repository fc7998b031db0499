# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of whole training steps in README.md and docs/measurements/performance.md from the bench's results, and those of
docs/measurements/rank_costs.md from the results of the model of many ranks.

    python -m caesura.bench --json benchmarks/results/2026-11-25.json             measures; the file's name is the day
    python benchmarks/ranks/rank_model.py --json benchmarks/results/rank_costs.json     predicts
    python docs/make_tables.py                                                    writes the tables

Of the bench's files the newest counts. A table stands between `<!-- steps -->`, or the name of another table, and
`<!-- end -->`; nobody edits it by hand.
"""

import json
import pathlib
import re
import sys

TOP = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "benchmarks" / "ranks"))

import rank_model  # noqa: E402
from markdown_table import header, row  # noqa: E402

RESULTS = TOP / "benchmarks" / "results"
RANK_COSTS, RANK_PAGE = RESULTS / "rank_costs.json", "docs/measurements/rank_costs.md"
PEERS = {"eager-fused": "PyTorch eager", "compile": "torch.compile", "ort-on-device": "ORT on-device", "jax": "JAX"}
SHORT = {"tiny-mlp": "tiny MLP, batch 16", "mlp": "MLP 784-512-512-10, batch 64", "digits-cnn": "3 convolutions on 8x8",
         "chargpt": "GPT of 10.7 M parameters", "chargpt-bf16": "the same in bfloat16", "llama": "Llama of 4.0 M parameters",
         "resnet18": "ResNet-18 at 64x64", "gpt2": "GPT-2 (124 M)"}  # the README's rows
ROUTES = {"caesura-wrap": "`wrap`", "caesura-step": "`compile_step`"}


def newest():
    """The newest results' path; None if there are none."""
    return max(RESULTS.glob("2*.json"), default=None)


def machine(results, day):
    facts = results["machine"]
    return f"{facts['cpu']}, {facts['threads']} of {facts['cores']} cores, {day}, {results['rounds']} rounds"


def ms(systems, name):
    seconds = systems.get(name, {}).get("seconds")
    return f"{seconds['median'] * 1e3:.3g}" if seconds else ""


def ratio(systems, name):
    found = systems.get(name, {}).get("caesura_ratio")
    if not found:
        return ""
    return f"{found['median']:.2f}" + (f" [{found['low']:.2f}, {found['high']:.2f}]" if found["low"] else "")


def quotient(systems, ours, peer):
    """The median time of one system over another one's; bold where it is above 1."""
    times = [systems.get(name, {}).get("seconds") for name in (ours, peer)]
    if None in times:
        return ""
    text = f"{times[0]['median'] / times[1]['median']:.2f}"
    return f"**{text}**" if float(text) > 1 else text


def first_step(systems, name):
    seconds = systems.get(name, {}).get("first_step_seconds")
    return "" if seconds is None else f"{seconds:.1f} s"


def megabytes(systems, name):
    found = systems.get(name, {})
    return f"{found['step_peak_bytes'] / 2**20:.0f}" if "step_peak_bytes" in found else ""


def short_table(results, day):
    """The time of each way in over each peer's: the README's rows."""
    peers = {"eager-fused": "eager", "compile": "compile"}
    text = (f"Whole training steps, time over the peer's: medians, in turns, `python -m caesura.bench`\n({machine(results, day)}).\n"
            "Peers have fused AdamW; compile is torch.compile in its default mode; the last two columns are first steps.\n\n")
    text += header(["net", *(f"{title} / {peer}" for peer in peers.values() for title in ROUTES.values()),
                    "1st `wrap`", "compile"])
    found = {workload["name"]: workload for workload in results["workloads"]}
    for name, title in SHORT.items():
        if name in found:
            systems = found[name]["systems"]
            text += row([title, *(quotient(systems, ours, peer) for peer in peers for ours in ROUTES),
                         first_step(systems, "caesura-wrap"), first_step(systems, "compile")])
    return text


def long_table(results, day):
    """All workloads: times, the share of the bound and memory; then ratios with their intervals."""
    text = f"{machine(results, day)}. MB is the peak memory of the steps above the imports.\n\n"
    text += header(["`--workload`", "session, ms", "`compile_step`, ms", "`wrap`, ms", "the bound's share", "MB", "MB, eager"])
    for workload in results["workloads"]:
        systems = workload["systems"]
        share = systems.get("caesura", {}).get("share_of_bound")
        text += row([f"`{workload['name']}`", *(ms(systems, name) for name in ("caesura", "caesura-step", "caesura-wrap")),
                     f"{share:.0%}" if share else "", megabytes(systems, "caesura"), megabytes(systems, "eager-fused")])
    text += ("\nThe time of a `TrainingSession` (of the exported model) over each peer's, with 95% intervals:\n\n"
             + header(["`--workload`", *PEERS.values()]))
    for workload in results["workloads"]:
        text += row([f"`{workload['name']}`", *(ratio(workload["systems"], peer) for peer in PEERS)])
    return text


TABLES = {"README.md": short_table, "docs/measurements/performance.md": long_table}


def with_table(text, name, table):
    """The text of a page with `table` between the marks of this name."""
    return re.sub(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", lambda _: table, text, count=1, flags=re.S)


def page_with_table(page, path):
    """The text of the page (a name in TABLES) with the table of the results in the file `path`."""
    return with_table((TOP / page).read_text(), "steps", TABLES[page](json.loads(path.read_text()), path.stem))


def rank_page(results):
    """The text of the page about the cost of many ranks with the tables of these results."""
    text = (TOP / RANK_PAGE).read_text()
    for name, table in rank_model.TABLES.items():
        text = with_table(text, name, table(results))
    return text


if __name__ == "__main__":
    if newest() is None:
        raise SystemExit(f"{RESULTS} has no results: run python -m caesura.bench --json benchmarks/results/DAY.json first")
    for page in TABLES:
        (TOP / page).write_text(page_with_table(page, newest()))
        print(f"{page}: the table of {newest().name}")
    (TOP / RANK_PAGE).write_text(rank_page(json.loads(RANK_COSTS.read_text())))
    print(f"{RANK_PAGE}: the tables of {RANK_COSTS.name}")
