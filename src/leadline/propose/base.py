"""What a proposer is: from a diagnosis, candidates in the order in which they should be tried."""

from collections.abc import Iterable
from typing import Protocol

from leadline.model import Candidate, Finding, Record, Rewrite


class Proposal(Record, frozen=True):
    """A candidate with the claim it rests on: one change, its hypothesis, what should move."""

    candidate: Candidate
    hypothesis: str
    evidence: tuple[str, ...] = ()
    prediction: str = ""
    applicability: str = "safe"
    group: str = ""  # alternatives of one change share a group: the best of them is kept
    signature: str = ""
    expect: str = ""
    rule: str = ""


class Proposer(Protocol):
    """`propose` is given the ranked findings of the parent and returns proposals, best first. It runs nothing."""

    name: str

    def propose(self, parent: Candidate, findings: tuple[Finding, ...], rewrites: dict[str, Rewrite]) -> Iterable[Proposal]: ...
