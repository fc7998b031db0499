# SPDX-License-Identifier: Apache-2.0
"""The tables of training steps and of many ranks are those that docs/make_tables.py makes from the kept results."""

import importlib.util
import json
import pathlib

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("make_tables", TOP / "docs" / "make_tables.py")
make_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_tables)


def system(ms, ratio=None, mb=10):
    made = {"seconds": {"median": ms / 1e3, "low": ms / 1e3, "high": ms / 1e3}, "step_peak_bytes": mb * 2**20}
    return made | ({"caesura_ratio": {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01}} if ratio else {})


RESULTS = {
    "machine": {"cpu": "A CPU", "threads": 2, "cores": 4}, "rounds": 20,
    "workloads": [
        {"name": "mlp", "systems": {
            "caesura": system(1.5) | {"share_of_bound": 0.93}, "eager-fused": system(3, 0.5, mb=20), "jax": system(2, 0.75),
            "compile": {"error": "no compiler"}, "caesura-wrap": system(2.25, 0.66) | {"first_step_seconds": 1.66}}},
        {"name": "digits-cnn", "systems": {"caesura": system(120), "compile": system(2), "caesura-wrap": system(3)}}],
}


def test_the_short_table_has_the_readmes_rows():
    assert make_tables.short_table(RESULTS, "2026-01-02") == """\
Whole training steps, time over the peer's: medians, in turns, `python -m caesura.bench`
(A CPU, 2 of 4 cores, 2026-01-02, 20 rounds).
Peers have fused AdamW; compile is torch.compile in its default mode; the last two columns are first steps.

| net | `wrap` / eager | `compile_step` / eager | `wrap` / compile | `compile_step` / compile | 1st `wrap` | compile |
|---|---|---|---|---|---|---|
| MLP 784-512-512-10, batch 64 | 0.75 |  |  |  | 1.7 s |  |
| 3 convolutions on 8x8 |  |  | **1.50** |  |  |  |
"""


def test_the_long_table_has_all_workloads():
    times, _, ratios = make_tables.long_table(RESULTS, "2026-01-02").split("\n\n")[1:]
    assert times == """\
| `--workload` | session, ms | `compile_step`, ms | `wrap`, ms | the bound's share | MB | MB, eager |
|---|---|---|---|---|---|---|
| `mlp` | 1.5 |  | 2.25 | 93% | 10 | 20 |
| `digits-cnn` | 120 |  | 3 |  | 10 |  |"""
    assert ratios == """\
| `--workload` | PyTorch eager | torch.compile | ORT on-device | JAX |
|---|---|---|---|---|
| `mlp` | 0.50 [0.49, 0.51] |  |  | 0.75 [0.74, 0.76] |
| `digits-cnn` |  |  |  |  |
"""


@pytest.mark.parametrize("page", make_tables.TABLES)
def test_a_table_takes_the_place_of_the_old_one(page, tmp_path):
    results = tmp_path / "2026-01-02.json"
    results.write_text(json.dumps(RESULTS))
    before, after = (TOP / page).read_text(), make_tables.page_with_table(page, results)
    table = make_tables.TABLES[page](RESULTS, "2026-01-02")
    assert before.count("<!-- steps -->") == 1
    begin, end = before.index("<!-- steps -->\n") + len("<!-- steps -->\n"), before.index("<!-- end -->")
    assert after == before[:begin] + table + before[end:]


@pytest.mark.skipif(make_tables.newest() is None, reason="benchmarks/results holds no results yet")
@pytest.mark.parametrize("page", make_tables.TABLES)
def test_pages_show_the_newest_results(page):
    assert (TOP / page).read_text() == make_tables.page_with_table(page, make_tables.newest())


def test_the_page_of_many_ranks_shows_the_kept_results():
    page = (TOP / make_tables.RANK_PAGE).read_text()
    assert page == make_tables.rank_page(json.loads(make_tables.RANK_COSTS.read_text()))
    assert all(page.count(f"<!-- {name} -->\n|") + page.count(f"<!-- {name} -->\nMPT") == 1 for name in make_tables.rank_model.TABLES)
