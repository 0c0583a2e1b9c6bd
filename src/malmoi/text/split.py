"""Which sentences are held out for validation when the user gives none.

In: a source, a seed, a share. Out: yes or no, decided by the source's hash alone, so that the same source never
stands on both sides, in whatever order, case or spacing it comes.
"""

from hashlib import blake2b

from malmoi.text.lines import normalize


def held_out(source: str, seed: int, share: float) -> bool:
    """Whether pairs with this source are held out; `share` is the expected part of different sources, in [0, 1]."""
    key = " ".join(normalize(normalize(source).casefold()).split())
    digest = blake2b(f"{seed}\n{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
