import importlib.metadata
from collections.abc import Iterator

import pytest

from leadline.errors import UsageError
from leadline.propose import base
from leadline.propose.from_rules import RulesProposer
from leadline.propose.search import SearchProposer


class Plugged:
    name = "other"

    def propose(self, *_: object) -> Iterator[object]:
        return iter(())


def test_proposers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(base.proposer("rules"), RulesProposer)
    assert isinstance(base.proposer("search"), SearchProposer)
    entry = importlib.metadata.EntryPoint(name="other", group="leadline.proposers", value=f"{__name__}:Plugged")
    monkeypatch.setattr(base, "entry_points", lambda group, name: [e for e in (entry,) if (e.group, e.name) == (group, name)])
    assert base.proposer("other").name == "other"
    with pytest.raises(UsageError) as caught:
        base.proposer("none")
    assert str(caught.value) == "--proposer: no proposer 'none'; use one of rules, search, or install the plug-in that has it"
