"""What `malmoi compare` is asked for: which systems, what is equal between them, what is refused before any work."""

from pathlib import Path

import pytest

from malmoi.commands.compare_plan import CompareRequest, read_plan, read_request
from malmoi.commands.plan import ORDINARY_FACTS
from malmoi.commands.systems import Plan, run_config, run_settings
from malmoi.config.model import RnnConfig, TransformerConfig
from malmoi.errors import ConfigError


def plan(*words: str, **options: object) -> Plan:
    return read_plan(CompareRequest(words=("pairs.tsv", *words), out=Path("out"), **options))  # type: ignore[arg-type]


def test_three_systems_alike_in_all_but_what_they_are() -> None:
    mine = plan("training.max_steps=40", "model.width=48", "model.heads=2", "model.hidden=80", "model.dropout=0.25")
    configs = [run_config(mine, system, ORDINARY_FACTS, 1) for system in mine.systems]
    models = [config.model for config in configs]
    assert [system.name for system in mine.systems] == ["seq2seq", "seq2seq-attention", "transformer"]
    first, second, third = models
    assert isinstance(first, RnnConfig) and isinstance(second, RnnConfig) and isinstance(third, TransformerConfig)
    assert (first.attention, second.attention, first.hidden, second.hidden) == ("none", "additive", 80, 80)
    assert (
        third.heads == 2 and {model.width for model in models} == {48} and {model.dropout for model in models} == {0.25}
    )
    for table in ("text", "cleaning", "decoding"):
        assert len({str(getattr(config, table)) for config in configs}) == 1
    for key in ("batch_tokens", "max_steps", "label_smoothing", "validate_every", "patience", "seed", "average"):
        assert len({getattr(config.training, key) for config in configs}) == 1, key
    assert configs[0].training.patience == 0


def test_recurrent_states_are_twice_as_wide_unless_they_are_given() -> None:
    for words, width in (((), 128), (("model.width=64",), 64)):
        mine = plan(*words)
        sizes = [run_config(mine, system, ORDINARY_FACTS, 1).model for system in mine.systems]
        assert all(isinstance(one, RnnConfig) and one.hidden == 2 * width for one in sizes[:2])
        assert {one.width for one in sizes} == {width}


def test_seeds_and_the_size_that_a_rule_chooses_change_nothing_else() -> None:
    mine = plan("training.seed=7", num_seeds=3)
    assert mine.seeds == [7, 8, 9]
    first, second = (run_settings(mine, mine.systems[0], ORDINARY_FACTS, seed) for seed in (7, 8))
    assert first["training"].pop("seed") == 7 and second["training"].pop("seed") == 8 and first == second
    assert run_settings(mine, mine.systems[0], ORDINARY_FACTS, 7, 66)["model"]["hidden"] == 66


def test_a_plan_comes_back_from_json() -> None:
    mine = plan("training.max_steps=9", valid=("v.tsv",), test=("t.tsv",), rule="parameters", num_seeds=2)
    assert Plan.from_json(mine.to_json()) == mine


@pytest.mark.parametrize(
    ("words", "options", "reason"),
    [
        (("training.patience=3",), {}, "same budget"),
        (("training.max_minutes=3",), {}, "take --equal time"),
        ((), {"rule": "time"}, "how long"),
        (("training.max_minutes=3", "training.max_steps=9"), {"rule": "time"}, "max_steps could end"),
        ((), {"rule": "luck"}, "there are tokens, time, parameters"),
        ((), {"num_seeds": 0}, "from 1 to"),
        ((), {"num_seeds": 21}, "from 1 to"),
        (("model.architecture=rnn",), {}, "tells the systems apart"),
        (("model.attention=dot",), {}, "tells the systems apart"),
        (("model.hidden=8",), {"rule": "parameters"}, "by itself"),
        (("model.widht=8",), {}, "did you mean width"),
        (("model.heads=3", "model.width=8"), {}, "heads"),
        (("training.lr=fast",), {}, "training.lr"),
        (("data=x",), {}, "name files"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: tuple[str, ...], options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan(*words, **options)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_list_of_configs_takes_the_place_of_the_three(tmp_path: Path) -> None:
    small = write(tmp_path / "small.toml", "[model]\nwidth = 32\nheads = 2\n[training]\npatience = 5\nmax_steps = 7\n")
    dot = write(tmp_path / "dot.toml", '[model]\narchitecture = "rnn"\nattention = "dot"\n[training]\nmax_steps = 7\n')
    mine = plan("model.heads=4", "training.batch_tokens=512", configs=(small, dot))
    models = [run_config(mine, system, ORDINARY_FACTS, 1) for system in mine.systems]
    assert [system.label for system in mine.systems] == ["small", "dot"]
    assert isinstance(models[0].model, TransformerConfig) and models[0].model.heads == 4
    assert isinstance(models[1].model, RnnConfig) and models[1].model.attention == "dot"
    assert {one.training.patience for one in models} == {0}


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("[text]\nvocabulary_size = 500\n", "", r"differ in \[text\]"),
        ("[cleaning]\nmax_tokens = 50\n", "", r"differ in \[cleaning\]"),
        ("[training]\nmax_steps = 5\n", "[training]\nmax_steps = 6\n", "differ in when they end"),
        ("[training]\nbatch_tokens = 128\n", "", "differ in when they end"),
        ("[training]\nmax_minutes = 5\n", "", "take --equal time"),
        ('[[data]]\npairs = "x.tsv"\n', "", "holds data"),
    ],
)
def test_configs_that_do_not_agree_are_refused(tmp_path: Path, first: str, second: str, reason: str) -> None:
    configs = (write(tmp_path / "a.toml", first), write(tmp_path / "b.toml", second))
    with pytest.raises(ConfigError, match=reason):
        plan("training.warmup_steps=3", configs=configs)


def test_configs_are_told_apart_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    configs = (write(tmp_path / "a.toml", ""), write(tmp_path / "x" / "a.toml", ""))
    with pytest.raises(ConfigError, match="two files are called a"):
        plan(configs=configs)
    with pytest.raises(ConfigError, match="no comparison"):
        plan(configs=configs[:1])
    with pytest.raises(ConfigError, match="chooses sizes"):
        plan(configs=(configs[0], write(tmp_path / "b.toml", "")), rule="parameters")


def test_target_tokens_may_be_equal_where_batches_are_not(tmp_path: Path) -> None:
    configs = (write(tmp_path / "a.toml", "[training]\nbatch_tokens = 128\n"), write(tmp_path / "b.toml", ""))
    assert plan("training.max_target_tokens=9000", configs=configs).rule == "tokens"


def test_a_file_that_is_called_like_one_of_the_three_is_a_users(tmp_path: Path) -> None:
    """Sizes, label and what may be set do not depend on the name of a file."""
    text = '[model]\narchitecture = "rnn"\n[training]\nmax_steps = 7\n'
    names = ("transformer", "seq2seq", "seq2seq-attention", "mine")
    configs = [write(tmp_path / f"{name}.toml", text) for name in names]
    found = plan("model.attention=dot", configs=tuple(configs))
    assert [system.label for system in found.systems] == list(names)
    models = [run_config(found, system, ORDINARY_FACTS, 1).model for system in found.systems]
    assert all(model == models[-1] for model in models)
    with pytest.raises(ConfigError, match="chooses sizes"):
        plan(configs=tuple(configs[:3]), rule="parameters")


def test_a_run_that_is_not_finished_is_named(tmp_path: Path) -> None:
    done, early = tmp_path / "done", tmp_path / "early"
    (done / "model").mkdir(parents=True)
    early.mkdir()
    write(done / "config.toml", "")
    for words in ((done, early), (early, done)):
        with pytest.raises(ConfigError, match=r"early: is no finished run as .*done is"):
            read_request(CompareRequest(words=tuple(map(str, words)), out=tmp_path / "out", test=("x.tsv",)))
