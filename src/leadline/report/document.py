"""A run as one HTML page: no external assets, light and dark, every text escaped."""

from importlib import resources

from leadline.model import Run
from leadline.report import content


def html(run: Run) -> str:
    """The page. Everything that came from a file, a compiler or a user is escaped by the template engine."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("leadline.report").joinpath("templates", "run.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        run=run,
        content=content,
        nodes=content.tree(run),
        rounds=content.round_rows(run),
        diff_class=diff_class,
        fixes=content.fixes(run),
    )


def diff_class(line: str) -> str:
    """CSS class of a line of a unified diff."""
    if line.startswith(("---", "+++", "@@")):
        return "meta"
    return "add" if line.startswith("+") else "del" if line.startswith("-") else ""
