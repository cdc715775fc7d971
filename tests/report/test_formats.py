"""The formats for tools and documents: HTML, Markdown, SARIF, JSON, diff, and those of plug-ins."""

import html.parser
import importlib.metadata
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from leadline import report
from leadline.errors import UsageError
from leadline.model import Run, Unavailable
from leadline.report import content, sarif
from leadline.report import json as run_json

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "tests" / "data" / "runs").glob("*.json"))

# What we write of SARIF 2.1.0, with the standard's own constraints on it.
REGION = {
    "type": "object",
    "required": ["startLine", "startColumn"],
    "additionalProperties": False,
    "properties": {key: {"type": "integer", "minimum": 1} for key in ("startLine", "startColumn", "endLine", "endColumn")},
}
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
LOCATION = {
    "type": "object",
    "required": ["uri"],
    "properties": {"uri": {"type": "string", "pattern": r"^[^\\ ]+$"}},
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "$schema": {"type": "string", "format": "uri"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {"shortDescription": TEXT, "help": TEXT},
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "invocations": {
                        "type": "array",
                        "items": {"required": ["executionSuccessful"], "properties": {"executionSuccessful": {"type": "boolean"}}},
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message", "ruleId", "level", "locations"],
                            "properties": {
                                "message": TEXT,
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "ruleIndex": {"type": "integer", "minimum": -1},
                                "locations": {
                                    "minItems": 1,
                                    "items": {
                                        "required": ["physicalLocation"],
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation", "region"],
                                                "properties": {"artifactLocation": LOCATION, "region": REGION},
                                            }
                                        },
                                    },
                                },
                                "fixes": {
                                    "type": "array",
                                    "uniqueItems": True,
                                    "items": {
                                        "required": ["artifactChanges"],
                                        "properties": {
                                            "description": TEXT,
                                            "artifactChanges": {
                                                "minItems": 1,
                                                "items": {
                                                    "required": ["artifactLocation", "replacements"],
                                                    "properties": {
                                                        "artifactLocation": LOCATION,
                                                        "replacements": {
                                                            "minItems": 1,
                                                            "items": {
                                                                "required": ["deletedRegion"],
                                                                "properties": {"deletedRegion": REGION, "insertedContent": TEXT},
                                                            },
                                                        },
                                                    },
                                                },
                                            },
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture(autouse=True)
def no_rules(monkeypatch):
    """Slugs from the causes, whatever rules are installed."""
    monkeypatch.setattr(content, "slugs", dict)


def sample(name: str) -> Run:
    return run_json.decode((ROOT / "tests" / "data" / "runs" / f"{name}.json").read_bytes())


def replaced(source: str, fix: dict) -> str:
    """`source` after a SARIF fix of whole lines."""
    lines = source.splitlines(keepends=True)
    for change in reversed(fix["artifactChanges"][0]["replacements"]):
        region = change["deletedRegion"]
        lines[region["startLine"] - 1 : region["endLine"] - 1] = [change["insertedContent"]["text"]]
    return "".join(lines)


# -- SARIF --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", RUNS, ids=lambda f: f.stem)
def test_sarif_is_valid(file):
    document = json.loads(sarif.sarif(run_json.decode(file.read_bytes())))
    jsonschema.validate(document, SARIF)
    run = document["runs"][0]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [ids[result["ruleIndex"]] for result in run["results"]] == [result["ruleId"] for result in run["results"]]


def test_sarif_says_where_and_how_sure():
    run = sample("diagnosed")
    first, second = json.loads(sarif.sarif(run))["runs"][0]["results"]
    assert (first["level"], second["level"]) == ("error", "warning")
    assert first["locations"][0]["physicalLocation"]["region"] == {"startLine": 13, "startColumn": 9, "endLine": 13, "endColumn": 60}
    assert "(confirmed; expected 1.3-1.9x)" in first["message"]["text"]


def test_sarif_fix_gives_the_rewritten_file():
    run = sample("diagnosed")
    (fix,) = json.loads(sarif.sarif(run))["runs"][0]["results"][0]["fixes"]
    assert replaced(run.source, fix) == run.rewrites["r1"].source


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb\nc\nd\ne\nf\ng\nh\n", "x\na\nb\nc\nd\nE\nf\ng\nh\ni\n"),
        ("a\nb\nc\n", "a\nc\n"),
        ("a\n", "a\nb\n"),
        ("a\nb", "a\nc"),  # no newline at the end
        ("--- a\n+++ b\n", "--- a\n+++ c\n"),  # lines that look like a diff's header
        ("a\nb\n", ""),
    ],
)
@pytest.mark.parametrize("context", [0, 1, 3])
def test_edits_of_a_diff_rebuild_the_new_text(old, new, context):
    import difflib

    diff = ""
    for line in difflib.unified_diff(old.splitlines(True), new.splitlines(True), "a/k.py", "b/k.py", n=context):
        diff += line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
    lines = old.splitlines(keepends=True)
    for edit in reversed(sarif.edits_of(old, diff, "k.py")):
        lines[edit.start - 1 : edit.end - 1] = [edit.text]
    assert "".join(lines).rstrip("\n") == new.rstrip("\n")


def test_a_diff_of_another_text_is_no_fix():
    assert sarif.edits_of("a\nb\n", "--- a\n+++ b\n@@ -1,2 +1,2 @@\n a\n-z\n+y\n", "k.py") == []


def test_sarif_notes_what_is_missing():
    run = msgspec.structs.replace(sample("diagnosed"), unavailable=(Unavailable(what="w", reason="r"),), errors=("crash",))
    notes = json.loads(sarif.sarif(run))["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert notes == [{"level": "note", "message": {"text": "w: r"}}, {"level": "error", "message": {"text": "crash"}}]


def test_uri(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sarif.uri(str(tmp_path / "a" / "k.py")) == "a/k.py"
    assert sarif.uri("/elsewhere/a k.py") == "file:///elsewhere/a%20k.py"
    assert sarif.uri("a k.py") == "a%20k.py"


# -- HTML ---------------------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Tags, references to anything outside, and the text of a page; checks that tags are nested."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.open, self.assets, self.text = set(), [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.assets += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("file", RUNS, ids=lambda f: f.stem)
def test_html_is_one_page_and_escapes_the_source(file):
    run = run_json.decode(file.read_bytes())
    text = report.get("html")(run)
    page = Page(text)
    assert "script" not in page.tags
    assert page.assets == []
    assert "&lt;script&gt;alert(" in text
    assert '<script>alert("not a tag")</script> is text like any other' in page.text
    assert content.outcome(run) in page.text
    assert "prefers-color-scheme: dark" in text


def test_html_escapes_every_field():
    evil = '"><script>x</script>'
    raw = msgspec.to_builtins(sample("optimized"))

    def spoil(value, key=""):
        if isinstance(value, dict):
            return {k: spoil(v, k) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [spoil(v, key) for v in value]
        fixed = ("type", "schema", "rewrite", "rewrites", "evidence", "against", "id", "verdict", "outcome", "diff", "source")
        return value + evil if isinstance(value, str) and key not in fixed else value

    run = msgspec.convert(spoil(raw), Run)
    page = Page(report.get("html")(run))
    assert "script" not in page.tags
    assert page.text.count("<script>") > 20


# -- Markdown -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", RUNS, ids=lambda f: f.stem)
def test_markdown_has_the_content(file):
    run = run_json.decode(file.read_bytes())
    text = report.get("md")(run)
    assert f"**{content.outcome(run)}**" in text
    assert "## MEM101 unaligned-access at `k.py:13:9`" in text
    assert "### Causes: PIP201 unpipelined-load at `k.py:15:5`" in text
    assert "   13 >     x = tl.load(x_ptr + row * stride + cols, mask=cols < n)" in text
    assert "+def add_bias(x_ptr, bias_ptr, out_ptr, stride: tl.constexpr, n, BLOCK: tl.constexpr):" in text
    assert text.count("```") % 2 == 0


def test_markdown_keeps_text_text():
    run = sample("diagnosed")
    rewrite = msgspec.structs.replace(run.rewrites["r1"], diff="-a\n+```b\n")
    finding = msgspec.structs.replace(run.findings[0], summary="x|y <b> *z* `t`")
    text = report.get("md")(msgspec.structs.replace(run, findings=(finding,), rewrites={"r1": rewrite}))
    assert "x\\|y \\<b\\> \\*z\\* \\`t\\`" in text
    assert "````diff\n-a\n+```b\n````" in text


# -- JSON ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", RUNS, ids=lambda f: f.stem)
def test_json_is_stable_and_complete(file):
    data = file.read_bytes()
    run = run_json.decode(data)
    assert run_json.encode(run) == data
    assert report.get("json")(run) == data.decode()
    read = json.loads(data)
    assert list(read)[:2] == ["schema", "id"]
    assert set(read["findings"][0]) >= {"rule", "cause", "grade", "file", "line", "summary", "estimate", "evidence", "against", "rewrite"}
    jsonschema.validate(read, json.loads(run_json.schema()))


def test_stored_schema_is_up_to_date():
    """To store anew: python -m leadline.report.json > docs/run.schema.json"""
    assert (ROOT / "docs" / "run.schema.json").read_bytes() == run_json.schema()


@pytest.mark.parametrize(
    ("data", "message"), [("{", "x: not a run: Input data was truncated"), (b"\xff", "x: not a run: JSON is malformed")]
)
def test_json_that_is_no_run(data, message):
    with pytest.raises(UsageError) as raised:
        run_json.decode(data, where="x")
    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith("; give a file written by --json or by report --format json")


# -- registry -----------------------------------------------------------------------------------------------------------


def test_formats_of_plug_ins(monkeypatch):
    good = importlib.metadata.EntryPoint("short", "tests.report.test_formats:short", "leadline.reports")
    bad = importlib.metadata.EntryPoint("bad", "no_such_module:x", "leadline.reports")

    def entry_points(group, name=None):
        return [entry for entry in (good, bad) if name in (None, entry.name)] if group == "leadline.reports" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: __import__(self.module) and short if self is bad else short)
    assert report.formats() == ("html", "md", "json", "sarif", "diff", "bad", "short")
    assert report.get("short")(Run(id="7")) == "run 7"
    with pytest.raises(UsageError) as raised:
        report.get("bad")
    assert str(raised.value) == (
        "--format: report plug-in no_such_module:x cannot be loaded: No module named 'no_such_module'; repair or remove the plug-in"
    )


def short(run: Run) -> str:
    return f"run {run.id}"


def test_diff_format():
    run = sample("optimized")
    assert report.get("diff")(run) == run.best_diff
    assert report.get("diff")(Run(best_diff="+a")) == "+a\n"
    assert report.get("diff")(Run()) == ""
