"""The store: runs and cached results in SQLite, large texts as files named by SHA-256. Safe for several processes at once."""

import contextlib
import hashlib
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from leadline.errors import UsageError
from leadline.model import Record, Run
from leadline.settings import default_home

_SCHEMA = """
create table if not exists results (key text primary key, value blob not null, used real not null);
create table if not exists runs (
  id text primary key, started text not null, command text, path text, case_name text, seconds real, sha text
);
"""


class RunEntry(Record, frozen=True):
    """One line of the list of runs."""

    id: str
    started: str
    command: str
    path: str
    case: str
    seconds: float


class Store:
    """Blobs, cached results and runs under one folder. A database that cannot be read is moved aside and started anew."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_home()
        try:
            (self.folder / "blobs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the store cannot be created: {error.strerror}", where=str(self.folder), remedy="set LEADLINE_HOME") from None
        self._ready = False

    def put_blob(self, data: bytes | str) -> str:
        """Keep `data` (text as UTF-8) and return its SHA-256 in hex."""
        raw = data.encode() if isinstance(data, str) else data
        sha = hashlib.sha256(raw).hexdigest()
        target = self._blob(sha)
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as out:
                out.write(raw)
            os.replace(out.name, target)  # atomic: a reader sees all of it or nothing
        return sha

    def get_blob(self, sha: str) -> bytes:
        """The data by its SHA-256. Raises KeyError when it is not there or its content no longer matches."""
        try:
            raw = self._blob(sha).read_bytes()
        except OSError:
            raise KeyError(sha) from None
        if hashlib.sha256(raw).hexdigest() != sha:
            self._blob(sha).unlink(missing_ok=True)
            raise KeyError(sha)
        return raw

    def get_text(self, sha: str) -> str:
        """`get_blob` as text."""
        return self.get_blob(sha).decode("utf-8", "replace")

    def cached(self, key: str) -> bytes | None:
        """The result remembered under `key`, or None."""
        with self._database() as database:
            row = database.execute("select value from results where key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def remember(self, key: str, value: bytes) -> None:
        """Remember a result under a key made from everything it depends on."""
        with self._database() as database:
            database.execute("insert or replace into results values (?, ?, ?)", (key, value, time.time()))

    def save_run(self, run: Run) -> None:
        """Keep a run under its id; a run saved twice is replaced."""
        sha = self.put_blob(msgspec.json.encode(run))
        row = (run.id, run.started, run.command, run.path, run.case, run.seconds, sha)
        with self._database() as database:
            database.execute("insert or replace into runs values (?, ?, ?, ?, ?, ?, ?)", row)

    def load_run(self, prefix: str) -> Run:
        """The run whose id starts with `prefix`; "" or "last" is the latest. Raises UsageError when none or several do."""
        with self._database() as database:
            if prefix in ("", "last"):
                rows = database.execute("select id, sha from runs order by started desc, rowid desc limit 1").fetchall()
            else:
                escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
                rows = database.execute("select id, sha from runs where id like ? escape '\\' order by id", (escaped + "%",)).fetchall()
        if len(rows) > 1 and prefix in [r[0] for r in rows]:
            rows = [r for r in rows if r[0] == prefix]
        if len(rows) != 1:
            what = f"no run {prefix!r}" if not rows else f"several runs start with {prefix!r}: {', '.join(r[0] for r in rows[:5])}"
            raise UsageError(what, remedy="--json shows the id of a run" if not rows else "give more characters of the id")
        try:
            return msgspec.json.decode(self.get_blob(rows[0][1]), type=Run)
        except (KeyError, msgspec.DecodeError):
            raise UsageError(f"run {rows[0][0]} can no longer be read", remedy="run it again") from None

    def runs(self) -> tuple[RunEntry, ...]:
        """All runs, latest first."""
        with self._database() as database:
            query = "select id, started, command, path, case_name, seconds from runs order by started desc, rowid desc"
            rows = database.execute(query).fetchall()
        return tuple(RunEntry(id=r[0], started=r[1], command=r[2], path=r[3], case=r[4], seconds=r[5]) for r in rows)

    def _blob(self, sha: str) -> Path:
        if len(sha) != 64 or not all(c in "0123456789abcdef" for c in sha):
            raise KeyError(sha)
        return self.folder / "blobs" / sha[:2] / sha

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection with one transaction. Opened per use: connections cannot be shared between threads or over a fork."""
        file = self.folder / "leadline.db"
        try:
            connection = self._open(file)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise
            self._move_aside(file)
            connection = self._open(file)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def _open(self, file: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(file, timeout=30)
        try:
            if not self._ready or not file.exists():
                connection.execute("pragma journal_mode = wal")
                connection.executescript(_SCHEMA)
                if connection.execute("pragma quick_check(1)").fetchone()[0] != "ok":
                    raise sqlite3.DatabaseError("malformed")
                self._ready = True
            connection.execute("pragma synchronous = normal")
            connection.execute("select 1 from runs limit 1").fetchone()
        except BaseException:
            self._ready = False
            connection.close()
            raise
        return connection

    def _move_aside(self, file: Path) -> None:
        aside = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(file, aside)
        for suffix in ("-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        print(f"leadline: {file} was damaged; moved to {aside.name} and started anew", file=sys.stderr)
