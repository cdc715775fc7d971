"""What outlives a command: runs and cached answers in SQLite, large texts as files named by their SHA-256. No pickle."""

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
from leadline.model import Run
from leadline.settings import default_home

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (id TEXT PRIMARY KEY, started REAL NOT NULL, path TEXT NOT NULL, command TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answer (key TEXT PRIMARY KEY, made REAL NOT NULL, body TEXT NOT NULL);
"""


class Store:
    """A folder: `leadline.sqlite3`, `blobs/ab/abcdef...`. Safe for several processes at once; a damaged database is moved aside."""

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self.home = Path(home).expanduser() if home else default_home()
        self.blobs = self.home / "blobs"
        self._database = self.home / "leadline.sqlite3"
        try:
            self.blobs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = "set LEADLINE_HOME to a folder that can be written"
            raise UsageError(f"cannot be written: {error.strerror}", where=str(self.home), remedy=remedy) from None
        try:
            self._prepare()
        except sqlite3.DatabaseError:
            aside = self._database.with_suffix(f".damaged-{int(time.time())}")
            self._database.rename(aside)
            for leftover in (f"{self._database}-wal", f"{self._database}-shm"):
                Path(leftover).unlink(missing_ok=True)
            print(f"leadline: {self._database} was damaged and is now {aside.name}; starting a new one", file=sys.stderr)
            self._prepare()

    def _prepare(self) -> None:
        with self._open() as database:
            database.executescript(_SCHEMA)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self._database, timeout=30, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            yield database
        finally:
            database.close()

    # -- blobs ----------------------------------------------------------------------------------------------------------

    def put_blob(self, content: bytes | str) -> str:
        """Keep `content`; returns its SHA-256."""
        data = content.encode() if isinstance(content, str) else content
        digest = hashlib.sha256(data).hexdigest()
        place = self.blobs / digest[:2] / digest
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
                file.write(data)
            os.replace(file.name, place)
        return digest

    def get_blob(self, digest: str) -> bytes | None:
        """The content with this SHA-256, None when it is not kept (or no longer what its name says)."""
        try:
            data = (self.blobs / digest[:2] / digest).read_bytes()
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == digest else None

    # -- cached answers -------------------------------------------------------------------------------------------------

    def cached(self, key: str) -> bytes | None:
        """What `remember` kept under this key, None when there is nothing."""
        with self._open() as database:
            row = database.execute("SELECT body FROM answer WHERE key = ?", (key,)).fetchone()
        return self.get_blob(row[0]) if row else None

    def remember(self, key: str, answer: bytes) -> None:
        """Keep `answer` under `key`, replacing what was there."""
        digest = self.put_blob(answer)
        with self._open() as database:
            database.execute("INSERT OR REPLACE INTO answer VALUES (?, ?, ?)", (key, time.time(), digest))

    # -- runs -----------------------------------------------------------------------------------------------------------

    def save_run(self, run: Run) -> None:
        """Keep a run, replacing an earlier state of the same run."""
        digest = self.put_blob(msgspec.json.encode(run))
        with self._open() as database:
            row = database.execute("SELECT started FROM run WHERE id = ?", (run.id,)).fetchone()
            started = row[0] if row else time.time()
            database.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?)", (run.id, started, run.path, run.command, digest))

    def load_run(self, name: str) -> Run | None:
        """The run with this id or unambiguous beginning of an id; "latest" is the newest. None when there is none.

        Raises UsageError when several ids begin so.
        """
        with self._open() as database:
            if name == "latest":
                rows = database.execute("SELECT id, body FROM run ORDER BY started DESC LIMIT 1").fetchall()
            else:
                pattern = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
                rows = database.execute("SELECT id, body FROM run WHERE id LIKE ? ESCAPE '\\' LIMIT 9", (pattern,)).fetchall()
        exact = [row for row in rows if row[0] == name]
        if len(rows) > 1 and not exact:
            raise UsageError(f"several runs begin with '{name}'", remedy=f"use one of {', '.join(row[0] for row in rows)}")
        if not rows:
            return None
        data = self.get_blob((exact or rows)[0][1])
        return msgspec.json.decode(data, type=Run) if data is not None else None

    def runs(self) -> tuple[tuple[str, str, str], ...]:
        """(id, command, path) of all runs, newest first."""
        with self._open() as database:
            return tuple(database.execute("SELECT id, command, path FROM run ORDER BY started DESC").fetchall())
