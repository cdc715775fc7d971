"""Order of findings: expected gain, weighed by how well it is supported; consequences hang under their root."""

import math

from leadline.model import Hypothesis

# How much of its claimed gain a hypothesis of each grade is believed to bring. Only the order matters.
WEIGHT = {"suspected": 0.45, "observed": 0.75, "located": 0.85, "confirmed": 1.0, "verified": 1.1}

# Gains below this are within what a device's noise hides; such hypotheses are not worth a reader's time.
NEGLIGIBLE = 1.03


def expected_gain(hypothesis: Hypothesis) -> float:
    """Expected log of the case's speedup, at least 0."""
    return WEIGHT[hypothesis.grade] * math.log(max(hypothesis.estimate.mid, 1.0))


def ranked(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Best first; a consequence of another hypothesis comes after its root whatever it claims. Negligible ones are dropped."""
    worth = [h for h in hypotheses if not h.refuted and h.estimate.high >= NEGLIGIBLE]
    names = {f"{h.rule}:{h.key}" for h in worth}
    caused = {c for h in worth for c in h.root_of if c in names}
    roots = sorted((h for h in worth if f"{h.rule}:{h.key}" not in caused), key=expected_gain, reverse=True)
    rest = sorted((h for h in worth if f"{h.rule}:{h.key}" in caused), key=expected_gain, reverse=True)
    return roots + rest
