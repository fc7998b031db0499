# SPDX-License-Identifier: Apache-2.0
"""Results as text and as a picture."""

import textwrap

from .systems import SYSTEMS


def table(workload: dict) -> str:
    """One workload's results, a line a system."""
    count = workload["parameters"]
    size = f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.1f} k"
    lines = [f"{workload['name']}: {workload['about']} ({size} parameters, {workload['dtype']})",
             f"  {'system':<14} {'ms/step':>9} {'[quartiles]':>18} {'caesura/it':>10} {'[95%]':>15} {'bound':>6} "
             f"{'first s':>8} {'capture':>7} {'MB':>7} {'losses':>8}"]
    return "\n".join(lines + [_row(system, result) for system, result in workload["systems"].items()])


def _row(system: str, result: dict) -> str:
    if "error" in result:
        error = textwrap.shorten(result["error"], 160, placeholder=" ...")
        return f"  {system:<14} {error}" + (f"; install: {result['install']}" if "install" in result else "")
    seconds = result["seconds"]
    row = f"  {system:<14} {_ms(seconds['median']):>9} {_pair(seconds['low'] * 1e3, seconds['high'] * 1e3):>18}"
    if system == "bound":
        return (f"{row}  matrix products {_ms(result['products'])} + AdamW's traffic {_ms(result['copy'])}"
                f" at {result['bytes_per_second'] / 1e9:.1f} GB/s")
    ratio = result.get("caesura_ratio")
    text = f"{ratio['median']:.3f}" if ratio else ""
    interval = "" if not ratio else _pair(ratio["low"], ratio["high"]) if ratio["low"] is not None else "[few rounds]"
    share = f"{result['share_of_bound']:.0%}" if "share_of_bound" in result else ""
    capture = f"{result['capture_seconds']:.1f}" if "capture_seconds" in result else ""
    difference = f"{result['loss_difference']:.0e}" if "loss_difference" in result else ""
    return (f"{row} {text:>10} {interval:>15} {share:>6} {result['first_step_seconds']:>8.2f} {capture:>7}"
            f" {result['step_peak_bytes'] / 2**20:>7.0f} {difference:>8}")


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.4f}" if ms < 1 else f"{ms:.2f}" if ms < 100 else f"{ms:.0f}"


def _pair(low: float, high: float) -> str:
    digits = 4 if high < 1 else 2 if high < 100 else 0
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


LEGEND = """\
ms/step      forward, loss, backward, AdamW, zeroed gradients: median over the rounds, with the quartiles
caesura/it   median of caesura's time over this system's, round by round; below 1: caesura is faster. [95%]: sign test's
             interval of that median
bound        the time of 'bound' as a part of this system's: matrix products alone (a convolution counts as the product
             it is equal to) and a copy of as many bytes as AdamW must move
first s      from load to the end of the first step, compilation included; capture: export before that, apart
MB           peak of the steps after the first, above the process after its imports
losses       largest relative difference to eager's over the first 5 steps"""


def picture(results: dict, path: str) -> None:
    """Bars: caesura's time over each peer's, by workload; the thin lines are the 95% intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = results["workloads"]
    peers = [s for s in SYSTEMS if any("caesura_ratio" in w["systems"].get(s, {}) for w in workloads)]
    figure, axes = pyplot.subplots(figsize=(max(6, 1.6 * len(workloads) + 2), 4.5))
    width = 0.8 / max(len(peers), 1)
    colors = matplotlib.colormaps["tab20"].colors
    for i, peer in enumerate(peers):
        found = [(at, w["systems"][peer]["caesura_ratio"]) for at, w in enumerate(workloads)
                 if "caesura_ratio" in w["systems"].get(peer, {})]
        middles = [r["median"] for _, r in found]
        below, above = ([abs((r[end] if r[end] is not None else r["median"]) - r["median"]) for _, r in found]
                        for end in ("low", "high"))
        axes.bar([at + (i - (len(peers) - 1) / 2) * width for at, _ in found], middles, width, yerr=[below, above],
                 label=peer, color=colors[i % len(colors)], error_kw={"linewidth": 0.8})
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(workloads)), [w["name"] for w in workloads], rotation=20)
    axes.set_ylabel("caesura's time / peer's time (below 1: faster)")
    axes.set_title(f"Whole training steps; threads: {results['machine']['threads']}, rounds: {results['rounds']}")
    if peers:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
