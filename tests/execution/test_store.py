import subprocess
import sys

import pytest

from leadline.errors import UsageError
from leadline.execution.store import Store
from leadline.model import Run


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_blobs(store):
    sha = store.put_blob("text é")
    assert store.put_blob("text é".encode()) == sha
    assert store.get_blob(sha) == "text é".encode()
    assert store.get_text(sha) == "text é"
    for wrong in ("0" * 64, "../../etc/passwd", ""):
        with pytest.raises(KeyError):
            store.get_blob(wrong)
    (store.folder / "blobs" / sha[:2] / sha).write_text("cut")
    with pytest.raises(KeyError):
        store.get_blob(sha)
    assert store.put_blob("text é") == sha
    assert store.get_text(sha) == "text é"


def test_cached_results(store):
    assert store.cached("k") is None
    store.remember("k", b"1")
    store.remember("k", b"2")
    assert Store(store.folder).cached("k") == b"2"


def test_runs(store):
    store.save_run(Run(id="abc1", started="2026-01-01", path="k.py", case="c", seconds=2.0))
    store.save_run(Run(id="abd2", started="2026-01-02"))
    assert [r.id for r in store.runs()] == ["abd2", "abc1"]
    assert store.load_run("abc").path == "k.py"
    assert store.load_run("last").id == "abd2"
    for prefix, what in (("zz", "no run 'zz'"), ("ab", "several runs start with 'ab': abc1, abd2"), ("%", "no run '%'")):
        with pytest.raises(UsageError) as caught:
            store.load_run(prefix)
        assert caught.value.what == what


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, b""])
def test_damaged_database(store, damage, capsys):
    store.remember("k", b"1")
    for suffix in ("-wal", "-shm"):
        (store.folder / f"leadline.db{suffix}").unlink(missing_ok=True)
    (store.folder / "leadline.db").write_bytes(damage)
    fresh = Store(store.folder)
    assert fresh.cached("k") is None
    fresh.remember("k", b"2")
    assert store.cached("k") == b"2"
    if damage:
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "was damaged; moved to leadline.db.damaged-" in err
        assert list(store.folder.glob("leadline.db.damaged-*"))


def test_several_processes_at_once(store):
    code = "import sys; from leadline.execution.store import Store; s = Store(sys.argv[1])\n"
    code += "for i in range(40): s.remember(f'{sys.argv[2]}{i}', b'v'); s.put_blob(f'blob {i}')\n"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(store.folder), name]) for name in "abc"]
    assert [p.wait(60) for p in processes] == [0, 0, 0]
    assert all(store.cached(f"{name}{i}") == b"v" for name in "abc" for i in range(40))


def test_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path / "here"))
    assert Store().folder == tmp_path / "here"
    assert Store().folder.is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the store cannot be created"):
        Store(tmp_path / "file" / "sub")
