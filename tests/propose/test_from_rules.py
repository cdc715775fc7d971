from leadline.model import Candidate, Estimate, Finding, Rewrite, content_hash
from leadline.propose.from_rules import RulesProposer

PARENT = Candidate(id="parent", source="old\n", proposer="original")
REWRITES = {
    "r1": Rewrite(
        id="r1", rule="A", title="first", source="one\n", prediction="moves", applicability="guarded", signature="async_copy",
        expect="increase",
    ),
    "r2": Rewrite(id="r2", rule="A", title="second", source="two\n"),
    "r3": Rewrite(id="r3", rule="B", title="none", source="old\n"),
}  # fmt: skip


def finding(rule: str, *rewrites: str) -> Finding:
    return Finding(
        rule=rule, cause="c", grade="observed", file="k.py", line=1, summary=f"{rule} is why",
        estimate=Estimate(kind="global", low=1, high=2), key="k:1", evidence=("e1",), rewrites=rewrites,
    )  # fmt: skip


def test_one_proposal_per_rewrite_in_the_order_of_findings() -> None:
    made = list(RulesProposer().propose(PARENT, (finding("B", "r2"), finding("A", "r1", "r2"), finding("C")), REWRITES))
    assert [(p.rule, p.candidate.rewrite, p.group) for p in made] == [("B", "r2", "B:k:1"), ("A", "r1", "A:k:1"), ("A", "r2", "A:k:1")]


def test_a_proposal_carries_the_claim_it_rests_on() -> None:
    (made,) = RulesProposer().propose(PARENT, (finding("A", "r1"),), REWRITES)
    assert made.candidate == Candidate(
        id=content_hash("one\n"), source="one\n", proposer="rules", rewrite="r1", parent="parent", title="first"
    )
    assert (made.hypothesis, made.evidence, made.prediction) == ("A is why", ("e1",), "moves")
    assert (made.applicability, made.signature, made.expect) == ("guarded", "async_copy", "increase")


def test_a_rewrite_that_changes_nothing_is_no_candidate() -> None:
    assert list(RulesProposer().propose(PARENT, (finding("B", "r3"),), REWRITES)) == []
