"""Settings: the nearest [tool.leadline], the environment, and one clear line for whatever is wrong."""

from pathlib import Path

import pytest

from leadline import settings
from leadline.errors import UsageError


def write(folder: Path, body: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(body)
    return file


def test_defaults_without_a_file(tmp_path):
    found = settings.load(tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found == settings.Settings(home=str(tmp_path / "cache" / "leadline"))


def test_all_keys_are_read(tmp_path):
    file = write(
        tmp_path,
        '[tool.leadline]\ntarget = "cuda:100"\nlevel = 3\nbudget = "2m"\nignore = ["MEM101"]\nselect = ["MEM"]\n'
        'proposers = ["rules"]\nthreshold = 1.1\nhome = ".runs"\n',
    )
    assert settings.load(tmp_path / "k.py::kernel", {}) == settings.Settings(
        target="cuda:100", level="3", budget_s=120.0, ignore=("MEM101",), select=("MEM",), proposers=("rules",), threshold=1.1,
        home=str(tmp_path / ".runs"), source=str(file),
    )  # fmt: skip


def test_nearest_file_with_the_table_wins(tmp_path):
    write(tmp_path, '[tool.leadline]\nlevel = "1"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path / "a", "[tool.other]\n")  # a pyproject without the table is passed by
    assert settings.load(inner, {}).level == "1"
    write(inner, '[tool.leadline]\nlevel = "2"\n')
    assert settings.load(inner / "k.py", {}).level == "2"


def test_environment_beats_the_file(tmp_path):
    write(tmp_path, '[tool.leadline]\nhome = "here"\n')
    found = settings.load(tmp_path, {"LEADLINE_HOME": "/elsewhere", "NO_COLOR": "1"})
    assert (found.home, found.color) == ("/elsewhere", False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("targets = 'cuda:90'", "tool.leadline: unknown key 'targets'; did you mean 'target'?"),
        (
            "zzz = 1",
            "tool.leadline: unknown key 'zzz'; valid keys are target, level, budget, select, ignore, proposers, threshold, home",
        ),
        ("target = 90", "tool.leadline.target: must be a string; correct its type"),
        (
            "target = 'h100'",
            "tool.leadline.target: 'h100' is not a target; write it as backend:architecture, for example cuda:90",
        ),
        ("level = 'deep'", "tool.leadline.level: 'deep' is not known; choose one of auto, 1, 2, 3, 4"),
        ("level = true", "tool.leadline.level: must be a string; correct its type"),
        ("ignore = 'MEM101'", "tool.leadline.ignore: must be a list of strings; correct its type"),
        ("ignore = [1]", "tool.leadline.ignore: must be a list of strings; correct its type"),
        ("threshold = '1'", "tool.leadline.threshold: must be a number; correct its type"),
        (
            "threshold = 0.5",
            "tool.leadline.threshold: 0.5 is below 1.0; give the smallest speedup to accept, such as 1.02",
        ),
        ("budget = 'soon'", "tool.leadline.budget: 'soon' is not a duration; write it as 60s, 5m or 1m30s"),
        ("budget = true", "tool.leadline.budget: must be a duration; correct its type"),
    ],
)
def test_wrong_settings_name_the_key(tmp_path, body, message):
    file = write(tmp_path, f"[tool.leadline]\n{body}\n")
    with pytest.raises(UsageError) as raised:
        settings.load(tmp_path, {})
    assert str(raised.value) == f"{file}: {message}"


def test_broken_toml(tmp_path):
    file = write(tmp_path, "[tool.leadline\n")
    with pytest.raises(UsageError) as raised:
        settings.load(tmp_path, {})
    assert str(raised.value).startswith(f"{file}: not valid TOML: ")


def test_table_must_be_a_table(tmp_path):
    file = write(tmp_path, "[tool]\nleadline = 3\n")
    with pytest.raises(UsageError) as raised:
        settings.load(tmp_path, {})
    assert str(raised.value) == f"{file}: tool.leadline is not a table; write [tool.leadline] and keys below it"


@pytest.mark.parametrize(("text", "value"), [("60s", 60), ("5m", 300), ("1h", 3600), ("1m30s", 90), ("45", 45), (" 2.5s ", 2.5)])
def test_durations(text, value):
    assert settings.seconds(text) == value


@pytest.mark.parametrize("text", ["", "0s", "-5s", "5 m s", "m", "1d", "nan", "5s5"])
def test_not_a_duration(text):
    with pytest.raises(UsageError) as raised:
        settings.seconds(text)
    assert str(raised.value) == f"--budget: '{text}' is not a duration; write it as 60s, 5m or 1m30s"


def test_choice_and_closest():
    assert settings.choice("auto", settings.LEVELS, where="--level") == "auto"
    assert settings.closest("serch", settings.PROPOSERS) == "search"
    assert settings.closest("mem101", ["MEM101", "MEM102"]) == "MEM101"
    assert settings.closest("qqqq", settings.PROPOSERS) == ""
    with pytest.raises(UsageError, match=r"^--proposer: 'serch' is not known; did you mean 'search'\?$"):
        settings.choice("serch", settings.PROPOSERS, where="--proposer")


def test_target_form():
    assert settings.check_target("ascend:950PR_9589") == "ascend:950PR_9589"
    with pytest.raises(UsageError, match=r"^--target: '90' is not a target; "):
        settings.check_target("90")


def test_home_follows_the_environment():
    assert settings.default_home({"LEADLINE_HOME": "/x"}) == Path("/x")
    assert settings.default_home({"XDG_CACHE_HOME": "/c"}) == Path("/c/leadline")
    assert settings.default_home({}) == Path("~/.cache/leadline").expanduser()


def test_optimize_options_extend_those_of_diagnose():
    options = settings.OptimizeOptions(target_file="k.py")
    assert isinstance(options, settings.DiagnoseOptions)
    assert (options.budget_s, options.rounds, options.write) == (settings.DEFAULT_BUDGET_S, settings.DEFAULT_ROUNDS, False)
