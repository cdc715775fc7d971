"""Every rule on its own examples, from recorded evidence: neither triton nor torch is imported here."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from leadline.diagnose.engine import Diagnosis, Engine
from leadline.diagnose.recorded import ReplayGatherer
from leadline.model import GRADES
from leadline.rules.base import Example, Rule, all_rules
from tests.rules.recording import load, path_of, slug

EXAMPLES = [pytest.param(r, e, id=slug(r, e)) for r in all_rules() for e in r.examples]


def diagnosed(rule: Rule, example: Example) -> Diagnosis:
    return _diagnosed(slug(rule, example))


@cache
def _diagnosed(name: str) -> Diagnosis:
    rule, example = next(p.values for p in EXAMPLES if p.id == name)
    path = path_of(rule, example)
    assert path.exists(), f"no recording of {path.name}: run python -m tests.rules.recording {rule.code}"
    recording = load(path)
    assert recording.case.source == example.before, f"{path.name} was recorded from another text: record {rule.code} again"
    first, *others = recording.traces
    found = Engine(ReplayGatherer(recording), [rule], target="cuda:90", auto=False).run(first, others)
    assert found.errors == ()
    return found


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_found_where_it_is(rule: Rule, example: Example) -> None:
    found = diagnosed(rule, example)
    if not example.line:
        strong = [h for h in found.hypotheses if GRADES.index(h.grade) > 0]
        assert not strong, f"the clean example yields {strong[0].claim}"
        return
    assert found.hypotheses, f"nothing found; refuted: {[h.refuted for h in found.refuted]}"
    best = found.hypotheses[0]
    assert best.span.line == example.line
    assert GRADES.index(best.grade) >= GRADES.index(example.grade), f"only {best.grade}"
    assert best.facts, "a finding without evidence"


@pytest.mark.parametrize(("rule", "example"), [p for p in EXAMPLES if p.values[1].after])
def test_rewrite_is_the_expected_text(rule: Rule, example: Example) -> None:
    found = diagnosed(rule, example)
    rewrites = [r for made in found.rewrites.values() for r in made]
    assert rewrites, "no rewrite"
    made = rewrites[example.rewrite]
    assert made.source == example.after
    ast.parse(made.source)


@pytest.mark.parametrize(("rule", "example"), [p for p in EXAMPLES if p.values[1].line])
def test_comments_survive_every_rewrite(rule: Rule, example: Example) -> None:
    before = [line.split("#", 1)[1].strip() for line in example.before.splitlines() if "#" in line]
    for made in (r for rewrites in diagnosed(rule, example).rewrites.values() for r in rewrites):
        for comment in before:
            assert comment in made.source


@pytest.mark.parametrize("rule", [pytest.param(r, id=r.code) for r in all_rules()])
def test_rule_documents_itself(rule: Rule) -> None:
    text = rule.__doc__ or ""
    for heading in ("What it finds", "Why it is slow", "How it is proved", "Rewrite and its safety", "References"):
        assert heading in text, f"{rule.code} lacks '{heading}'"
    assert rule.examples, f"{rule.code} has no example"
    assert any(e.line for e in rule.examples)
    assert any(not e.line for e in rule.examples), f"{rule.code} has no clean example"


ALONE = """
import sys
from tests.rules.test_examples import EXAMPLES, diagnosed
of_each_family = {rule.family: (rule, example) for rule, example in (p.values for p in EXAMPLES) if example.line}
print(sum(bool(diagnosed(*which).hypotheses) for which in of_each_family.values()), *sorted({"triton", "torch"} & set(sys.modules)))
"""


def test_neither_triton_nor_torch_is_needed() -> None:
    # In a process of its own: tests of the compiler may have imported both here.
    ran = subprocess.run([sys.executable, "-c", ALONE], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == (str(len({r.family for r in all_rules()})), "")


def test_codes_slugs_and_families() -> None:
    rules = all_rules()
    assert len({r.slug for r in rules}) == len(rules)
    assert {"host", "grid", "tile", "memory", "compute", "pipeline", "atomics"} <= {r.family for r in rules}
