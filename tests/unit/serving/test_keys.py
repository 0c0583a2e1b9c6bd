"""Keys: shown once, hashed at rest, with a quota that concurrent requests cannot pass."""

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from malmoi.errors import ConfigError, DataError
from malmoi.serving import keys as module
from malmoi.serving.keys import Charge, Keys
from malmoi.serving.limits import RefusedError


def test_a_key_is_known_until_it_is_removed(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    key = keys.add("Jeju", 100)
    client = keys.find(key)
    assert (client.name, client.maybe_characters, client.used) == ("Jeju", 100, 0)
    with pytest.raises(ConfigError, match="already"):
        keys.add("Jeju")
    keys.remove("Jeju")
    with pytest.raises(RefusedError) as refused:
        keys.find(key)
    assert refused.value.status == 401
    with pytest.raises(ConfigError, match="no key"):
        keys.remove("Jeju")


def test_the_file_holds_no_secret(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    first, second = keys.add("a"), keys.add("b")
    keys.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for key in (first, second):
        secret = key.split("_", 2)[2]
        assert len(secret) > 40 and secret.encode() not in stored


def test_what_is_almost_a_key_is_none(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    key, other = keys.add("a"), keys.add("b")
    number = key.split("_")[1]
    for wrong in (
        "",
        "mm",
        key[:-1],
        key + "x",
        key.replace("mm_", "nn_"),
        f"mm_{number}_",
        f"mm_{number}_" + other.split("_", 2)[2],
        "'; DROP TABLE keys; --",
        "한글",
    ):
        with pytest.raises(RefusedError):
            keys.find(wrong)
    assert keys.find(key).name == "a"


def test_a_quota_holds_however_many_ask_at_once(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    client = keys.find(keys.add("a", 100))

    def charge(_: int) -> int:
        try:
            keys.charge(client, 7)
        except RefusedError as error:
            assert error.status == 456
            return 0
        return 7

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(charge, range(40))) == 98
    assert [one.used for one in keys.clients()] == [98]
    keys.refund(keys.charge(client, 2), 1)
    keys.charge(client, 1)
    assert [one.used for one in keys.clients()] == [100]


def test_what_is_given_back_is_of_the_month_in_which_it_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    client = keys.find(keys.add("a", 100))
    month = ["2026-01"]
    monkeypatch.setattr(module, "this_month", lambda: month[0])
    charge = keys.charge(client, 60)
    month[0] = "2026-02"
    keys.charge(client, 50)
    keys.refund(charge, 10)
    assert [one.used for one in keys.clients()] == [50]
    month[0] = "2026-01"
    assert [one.used for one in keys.clients()] == [10]


def test_no_quota_is_no_limit(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    client = keys.find(keys.add("a"))
    keys.charge(client, 10**12)
    assert keys.clients()[0].used == 10**12


def test_another_file_is_not_taken_for_keys(tmp_path: Path) -> None:
    place = tmp_path / "text"
    place.write_bytes(b"no database, but long enough to be looked at" * 100)
    with pytest.raises(DataError, match="file of keys"):
        Keys(place)


@pytest.mark.parametrize(("name", "characters"), [("", 1), ("a\n", 1), ("x" * 101, 1), ("a", -1), ("a", 10**16)])
def test_names_and_quotas_are_checked(tmp_path: Path, name: str, characters: int) -> None:
    with pytest.raises(ConfigError):
        Keys(tmp_path / "keys.sqlite").add(name, characters)


def lock(place: Path) -> Callable[[], None]:
    """Another process that writes for long."""
    other = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    return other.close


def test_a_file_that_others_write_to_is_read_all_the_same(tmp_path: Path) -> None:
    place = tmp_path / "keys.sqlite"
    keys = Keys(place)
    key = keys.add("a", 100)
    client = keys.find(key)
    release = lock(place)
    with ThreadPoolExecutor(9) as threads:
        charging = [threads.submit(keys.charge, client, 1) for _ in range(8)]
        began = time.monotonic()
        # Whoever reads takes nothing that a writer holds, be it this process or the other one.
        with keys.lock:
            assert keys.find(key).name == "a" and keys.clients()
        for one in charging:
            fault = one.exception()
            assert isinstance(fault, RefusedError) and (fault.status, fault.retry_after) == (503, 5)
        assert time.monotonic() - began < 10
    keys.refund(Charge(client.id, "2026-01", 1))
    with pytest.raises(DataError, match="locked"):
        keys.add("b")
    release()
    keys.charge(client, 1)
    assert keys.find(key).used == 1


def test_a_full_disk_is_a_refusal(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.sqlite")
    key = keys.add("a", 100)
    client = keys.find(key)
    (pages,) = keys.connection.execute("PRAGMA page_count").fetchone()
    keys.connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(DataError, match="full"):
        for number in range(1_000):
            keys.add(f"{number}" + "x" * 80)
    keys.connection.execute("DROP TABLE usage")
    for call in (lambda: keys.find(key), lambda: keys.charge(client, 1)):
        with pytest.raises(RefusedError) as refused:
            call()
        assert refused.value.status == 503 and "sql" not in refused.value.message.lower()
    keys.refund(Charge(client.id, "2026-01", 1))
