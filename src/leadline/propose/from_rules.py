"""The proposer without a model: the rules' own rewrites, in the order of their findings."""

from collections.abc import Iterable

from leadline.model import Candidate, Finding, Rewrite, content_hash
from leadline.propose.base import Proposal


class RulesProposer:
    """One proposal per rewrite; alternatives of one finding form a group."""

    name = "rules"

    def propose(self, parent: Candidate, findings: tuple[Finding, ...], rewrites: dict[str, Rewrite]) -> Iterable[Proposal]:
        for finding in findings:
            for name in finding.rewrites:
                rewrite = rewrites[name]
                if rewrite.source == parent.source:
                    continue
                candidate = Candidate(
                    id=content_hash(rewrite.source),
                    source=rewrite.source,
                    proposer=self.name,
                    rewrite=name,
                    parent=parent.id,
                    title=rewrite.title,
                )
                yield Proposal(
                    candidate=candidate,
                    hypothesis=finding.summary,
                    evidence=finding.evidence,
                    prediction=rewrite.prediction,
                    applicability=rewrite.applicability,
                    group=f"{finding.rule}:{finding.key}",
                    signature=rewrite.signature,
                    expect=rewrite.expect,
                    rule=finding.rule, kernel=finding.kernel,
                )
