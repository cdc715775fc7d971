"""What a proposer is: from a diagnosis, candidates in the order in which they should be tried."""

import importlib
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Protocol

from leadline.errors import UsageError
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
    kernel: str = ""  # the kernel whose signature must move


class Proposer(Protocol):
    """`propose` is given the ranked findings of the parent and returns proposals, best first. It runs nothing."""

    name: str

    def propose(self, parent: Candidate, findings: tuple[Finding, ...], rewrites: dict[str, Rewrite]) -> Iterable[Proposal]: ...


OWN = {"rules": "leadline.propose.from_rules:RulesProposer", "search": "leadline.propose.search:SearchProposer"}


def proposer(name: str) -> Proposer:
    """The proposer of this name: ours, or a plug-in's (entry-point group `leadline.proposers`). Raises UsageError when there is none."""
    if name in OWN:
        module, _, kind = OWN[name].partition(":")
        return getattr(importlib.import_module(module), kind)()
    for entry in entry_points(group="leadline.proposers", name=name):
        return entry.load()()
    raise UsageError(f"no proposer '{name}'", where="--proposer", remedy=f"use one of {', '.join(OWN)}, or install the plug-in that has it")
