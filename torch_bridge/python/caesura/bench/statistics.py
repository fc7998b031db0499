# SPDX-License-Identifier: Apache-2.0
"""Medians and their intervals, without assumptions about the distribution of times."""

import math
import statistics
from typing import NamedTuple, Optional
from collections.abc import Sequence


class Spread(NamedTuple):
    median: float
    low: float   # lower quartile
    high: float  # upper quartile


class Ratio(NamedTuple):
    median: float
    low: Optional[float]   # the interval's ends; None where the rounds are too few for one
    high: Optional[float]


def spread(values: Sequence[float]) -> Spread:
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else list(values) * 3
    return Spread(statistics.median(values), quartiles[0], quartiles[2])


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Optional[tuple]:
    """The narrowest pair of order statistics that holds the median with at least that confidence (the sign test's
    interval); None when even the smallest and the largest do not: below 6 values at 95%."""
    ordered, n = sorted(values), len(values)
    allowed = (1.0 - confidence) / 2
    outside, cut = 0.0, 0  # the chance that at most `cut - 1` of n values are below the median
    while cut < n // 2 and outside + math.comb(n, cut) / 2.0**n <= allowed:
        outside += math.comb(n, cut) / 2.0**n
        cut += 1
    return (ordered[cut - 1], ordered[n - cut]) if cut else None


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The median of ours / theirs, round by round, of two systems that took turns; with its 95% interval."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = median_interval(ratios) or (None, None)
    return Ratio(statistics.median(ratios), low, high)


def largest_difference(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The largest |a - b| / |b|; infinity where a loss is not a number."""
    differences = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, reference, strict=True)]
    return max((d if math.isfinite(d) else math.inf for d in differences), default=0.0)
