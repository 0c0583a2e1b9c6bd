"""The list of mutations fits the source, so that none of them is lost when code moves."""

import pytest

from mutations import ROOT, Mutation, read_mutations

MUTATIONS = read_mutations()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{one.mechanism}-{one.broken}" for one in MUTATIONS])
def test_what_is_broken_stands_in_the_source_once(mutation: Mutation) -> None:
    source = (ROOT / "src" / "malmoi" / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1 and mutation.old != mutation.new
    assert all((ROOT / test.split("::")[0]).exists() for test in mutation.tests)
