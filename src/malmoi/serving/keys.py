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
from dataclasses import dataclass
from pathlib import Path

from malmoi.errors import ConfigError, DataError
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


@dataclass(frozen=True)
class Client:
    """Whose key it is; `maybe_characters` a month are theirs, or as many as they like."""

    id: str
    name: str
    maybe_characters: int | None
    used: int


class Keys:
    """The keys in one file. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        try:
            self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise DataError(f"{path}: cannot be used as a file of keys ({error})") from error

    def close(self) -> None:
        with self.lock:
            self.connection.close()

    def add(self, name: str, maybe_characters: int | None = None) -> str:
        """A new key, which nobody can be told again."""
        if not name or len(name) > 100 or not name.isprintable():
            raise ConfigError("a key needs a name of at most 100 letters")
        if maybe_characters is not None and not 0 <= maybe_characters <= MOST_CHARACTERS:
            raise ConfigError(f"characters must be from 0 to {MOST_CHARACTERS}")
        number, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_bytes(16)
        row = (number, name, salt, hash_of(secret, salt), maybe_characters, int(time.time()))
        try:
            with self.lock:
                self.connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise ConfigError(f"there is a key for {name} already; remove it first") from None
        return f"{PREFIX}_{number}_{secret}"

    def remove(self, name: str) -> None:
        """`ConfigError` where there is no key of this name."""
        with self.lock:
            if not self.connection.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount:
                raise ConfigError(f"there is no key for {name}")

    def clients(self) -> list[Client]:
        """All of them with what they used this month, by name."""
        query = (
            "SELECT keys.id, name, keys.characters, COALESCE(usage.characters, 0) FROM keys "
            "LEFT JOIN usage ON usage.id = keys.id AND month = ? ORDER BY name"
        )
        with self.lock:
            return [Client(*row) for row in self.connection.execute(query, (this_month(),))]

    def find(self, key: str) -> Client:
        """Whose key this is; `RefusedError` (401) where it is nobody's."""
        prefix, _, rest = key.partition("_")
        number, _, secret = rest.partition("_")
        query = (
            "SELECT keys.id, name, keys.characters, COALESCE(usage.characters, 0), salt, hash FROM keys "
            "LEFT JOIN usage ON usage.id = keys.id AND month = ? WHERE keys.id = ?"
        )
        with self.lock:
            row = self.connection.execute(query, (this_month(), number)).fetchone()
        # A number that nobody has costs as much time as a wrong secret.
        salt, wanted = (row[4], row[5]) if row is not None else (b"", b"")
        is_right = hmac.compare_digest(hash_of(secret, salt), wanted)
        if row is None or not is_right or prefix != PREFIX:
            raise RefusedError(401, "bad_key", "this key is not known here")
        return Client(*row[:4])

    def charge(self, client: Client, characters: int) -> None:
        """Count characters; `RefusedError` (456) where they are more than is left of the month."""
        with self.lock:
            self.connection.execute("INSERT OR IGNORE INTO usage VALUES (?, ?, 0)", (client.id, this_month()))
            changed = self.connection.execute(
                "UPDATE usage SET characters = characters + ? WHERE id = ? AND month = ? AND (? IS NULL OR "
                "characters + ? <= ?)",
                (characters, client.id, this_month(), client.maybe_characters, characters, client.maybe_characters),
            ).rowcount
        if not changed:
            raise RefusedError(456, "quota_exceeded", "the characters of this key for this month are used up")

    def refund(self, client: Client, characters: int) -> None:
        """Give characters back that were not translated after all."""
        with self.lock:
            self.connection.execute(
                "UPDATE usage SET characters = MAX(0, characters - ?) WHERE id = ? AND month = ?",
                (characters, client.id, this_month()),
            )


def hash_of(secret: str, salt: bytes) -> bytes:
    return hashlib.blake2b(secret.encode("utf-8"), key=salt, digest_size=32).digest()


def this_month() -> str:
    """Months are those of UTC."""
    return time.strftime("%Y-%m", time.gmtime())
