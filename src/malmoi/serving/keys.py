"""Keys of clients and what they may use in a month.

In: a SQLite file. Out: who a key belongs to, and whether its characters reach. A key is shown once, when it is made;
the file holds a hash of it with a salt of its own. A key is 256 random bits, which nobody guesses, so that one fast
keyed hash is enough.
"""

import hashlib
import hmac
import secrets
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from malmoi.errors import ConfigError, DataError
from malmoi.log import get_logger
from malmoi.serving.limits import RefusedError

PREFIX = "mm"
SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, salt BLOB NOT NULL, hash BLOB NOT NULL,
    characters INTEGER, created INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS usage (
    id TEXT NOT NULL, month TEXT NOT NULL, characters INTEGER NOT NULL, PRIMARY KEY (id, month)
);
"""
MOST_CHARACTERS = 10**15
PATIENCE = 1.0
"""Seconds that a request waits for others, or for another process, to have written."""


@dataclass(frozen=True)
class Client:
    """Whose key it is; `maybe_characters` a month are theirs, or as many as they like."""

    id: str
    name: str
    maybe_characters: int | None
    used: int


@dataclass(frozen=True)
class Charge:
    """Characters that were counted for a client, in the month in which they were."""

    id: str
    month: str
    characters: int


class Keys:
    """The keys in one file. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Whoever reads waits for nobody who writes.
        self.lock, self.reading_lock = threading.Lock(), threading.Lock()
        with self.told():
            self.connection = sqlite3.connect(path, PATIENCE, check_same_thread=False, isolation_level=None)
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.executescript(SCHEMA)
            self.reading = sqlite3.connect(path, PATIENCE, check_same_thread=False, isolation_level=None)
            self.reading.execute("PRAGMA query_only=ON")

    def close(self) -> None:
        with self.lock, self.reading_lock:
            self.connection.close()
            self.reading.close()

    @contextmanager
    def told(self) -> Generator[None]:
        """A fault of the file is one of the operator's data."""
        try:
            yield
        except sqlite3.Error as error:
            raise DataError(f"{self.path}: cannot be used as a file of keys ({error})") from error

    @contextmanager
    def held(self, lock: threading.Lock) -> Generator[None]:
        """A connection for one request; `RefusedError` (503) where it is not free in time, or the file fails."""
        refused = RefusedError(503, "keys_unavailable", "keys cannot be looked up at the moment; try again", 5)
        if not lock.acquire(timeout=PATIENCE):
            raise refused
        try:
            yield
        except sqlite3.Error as error:
            get_logger().error("%s: %s (%s)", self.path, error, type(error).__name__)
            raise refused from error
        finally:
            lock.release()

    def add(self, name: str, maybe_characters: int | None = None) -> str:
        """A new key, which nobody can be told again."""
        if not name or len(name) > 100 or not name.isprintable():
            raise ConfigError("a key needs a name of at most 100 letters")
        if maybe_characters is not None and not 0 <= maybe_characters <= MOST_CHARACTERS:
            raise ConfigError(f"characters must be from 0 to {MOST_CHARACTERS}")
        number, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_bytes(16)
        row = (number, name, salt, hash_of(secret, salt), maybe_characters, int(time.time()))
        try:
            with self.lock, self.told():
                self.connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)", row)
        except DataError as error:
            if isinstance(error.__cause__, sqlite3.IntegrityError):
                raise ConfigError(f"there is a key for {name} already; remove it first") from None
            raise
        return f"{PREFIX}_{number}_{secret}"

    def remove(self, name: str) -> None:
        """`ConfigError` where there is no key of this name."""
        with self.lock, self.told():
            if not self.connection.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount:
                raise ConfigError(f"there is no key for {name}")

    def clients(self) -> list[Client]:
        """All of them with what they used this month, by name."""
        query = (
            "SELECT keys.id, name, keys.characters, COALESCE(usage.characters, 0) FROM keys "
            "LEFT JOIN usage ON usage.id = keys.id AND month = ? ORDER BY name"
        )
        with self.reading_lock, self.told():
            return [Client(*row) for row in self.reading.execute(query, (this_month(),))]

    def find(self, key: str) -> Client:
        """Whose key this is; `RefusedError` (401) where it is nobody's."""
        prefix, _, rest = key.partition("_")
        number, _, secret = rest.partition("_")
        query = (
            "SELECT keys.id, name, keys.characters, COALESCE(usage.characters, 0), salt, hash FROM keys "
            "LEFT JOIN usage ON usage.id = keys.id AND month = ? WHERE keys.id = ?"
        )
        with self.held(self.reading_lock):
            row = self.reading.execute(query, (this_month(), number)).fetchone()
        # A number that nobody has costs as much time as a wrong secret.
        salt, wanted = (row[4], row[5]) if row is not None else (b"", b"")
        is_right = hmac.compare_digest(hash_of(secret, salt), wanted)
        if row is None or not is_right or prefix != PREFIX:
            raise RefusedError(401, "bad_key", "this key is not known here")
        return Client(*row[:4])

    def charge(self, client: Client, characters: int) -> Charge:
        """Count characters; `RefusedError` (456) where they are more than is left of the month."""
        month = this_month()
        with self.held(self.lock):
            self.connection.execute("INSERT OR IGNORE INTO usage VALUES (?, ?, 0)", (client.id, month))
            changed = self.connection.execute(
                "UPDATE usage SET characters = characters + ? WHERE id = ? AND month = ? AND (? IS NULL OR "
                "characters + ? <= ?)",
                (characters, client.id, month, client.maybe_characters, characters, client.maybe_characters),
            ).rowcount
        if not changed:
            raise RefusedError(456, "quota_exceeded", "the characters of this key for this month are used up")
        return Charge(client.id, month, characters)

    def refund(self, charge: Charge, kept: int = 0) -> None:
        """Give back all but `kept` characters of a charge, if the file lets us: they were not answered after all, and
        why they were not is told."""
        with suppress(RefusedError), self.held(self.lock):
            self.connection.execute(
                "UPDATE usage SET characters = MAX(0, characters - ?) WHERE id = ? AND month = ?",
                (max(0, charge.characters - kept), charge.id, charge.month),
            )


def hash_of(secret: str, salt: bytes) -> bytes:
    return hashlib.blake2b(secret.encode("utf-8"), key=salt, digest_size=32).digest()


def this_month() -> str:
    """Months are those of UTC."""
    return time.strftime("%Y-%m", time.gmtime())
