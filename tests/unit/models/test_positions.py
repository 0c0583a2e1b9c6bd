"""Position encodings: any width, any length, and limits that are told before a table is read past its end."""

import numpy as np
import pytest
import torch

from malmoi.config.model import TransformerConfig
from malmoi.errors import DataError
from malmoi.models.build import build_model
from malmoi.models.positions import (
    GrowingTable,
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from reference.models import small_transformer
from reference.transformer import sinusoid


@pytest.mark.parametrize("width", [1, 2, 3, 5, 6, 7, 127, 128])
def test_sinusoids_of_any_width(width: int) -> None:
    """codertimo/BERT-pytorch#78, gc-os-ai/pyaptamer#526, datawhalechina/base-llm#67: odd widths as well."""
    table = SinusoidalPositions(width).table(70, torch.empty(0, dtype=torch.float64))
    expected = np.stack([sinusoid(place, width) for place in range(70)])
    np.testing.assert_allclose(table.numpy(), expected, rtol=0, atol=1e-12)
    assert len(torch.unique(table, dim=0)) == 70


@pytest.mark.parametrize("width", [1, 3, 5, 7, 127])
def test_models_of_odd_width(width: int) -> None:
    config = small_transformer(width=width, heads=1)
    hidden_BTD = build_model(config, 5, 5).eval()(
        torch.zeros(1, 4, dtype=torch.int64), torch.tensor([4]), torch.zeros(1, 3, dtype=torch.int64)
    )
    assert hidden_BTD.shape == (1, 3, width) and bool(torch.isfinite(hidden_BTD).all())


def test_heads_that_do_not_divide_the_width_are_named() -> None:
    with pytest.raises(ValueError, match="width 6 cannot be cut into 4 heads"):
        small_transformer(width=6, heads=4)
    with pytest.raises(ValueError, match="rotary positions turn pairs"):
        small_transformer(width=6, heads=2, positions="rotary")


def test_sinusoids_grow_and_keep_their_values() -> None:
    positions = SinusoidalPositions(6)
    like = torch.empty(0)
    short = positions.table(10, like).clone()
    assert torch.equal(positions.table(5000, like)[:10], short)
    assert positions.table(3, like).shape == (3, 6)
    assert positions.table(3, like.double()).dtype == torch.float64


def test_learned_positions_end_where_the_table_ends() -> None:
    """Compared before the lookup, so that the next sentence works.

    OpenNMT/CTranslate2#1646, bentrevett/pytorch-seq2seq#69, #32, facebookresearch/fairseq#1853.
    """
    model = build_model(small_transformer(positions="learned", max_positions=64), 5, 5).eval()
    assert model.max_positions == 64
    for side in (0, 1):
        for length, fits in ((62, True), (63, True), (64, True), (65, False), (500, False), (3, True)):
            lengths = [4, 4]
            lengths[side] = length
            source_BS, target_BT = (torch.zeros(1, n, dtype=torch.int64) for n in lengths)
            if fits:
                assert model(source_BS, torch.tensor([lengths[0]]), target_BT).shape == (1, lengths[1], 8)
            else:
                with pytest.raises(DataError, match=f"{length} tokens is longer than the 64 positions"):
                    model(source_BS, torch.tensor([lengths[0]]), target_BT)


def test_search_can_use_the_whole_table() -> None:
    """The last allowed step works and the one after it is refused (facebookresearch/fairseq#119)."""
    model = build_model(small_transformer(positions="learned", max_positions=5), 5, 5).eval()
    state = model.start(model.encode(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 1])))
    for _ in range(5):
        _, state = model.step(torch.tensor([5, 5]), state)
    with pytest.raises(DataError, match="6 tokens is longer than the 5 positions"):
        model.step(torch.tensor([5, 5]), state)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative", "none"])
def test_others_have_no_limit(positions: str) -> None:
    model = build_model(small_transformer(positions=positions, max_positions=4, encoder_layers=1), 5, 5).eval()
    assert model.max_positions is None
    source_BS = torch.zeros(1, 150, dtype=torch.int64)
    assert bool(torch.isfinite(model(source_BS, torch.tensor([150]), source_BS)).all())


def test_rotary_products_depend_on_the_distance_alone() -> None:
    positions = RotaryPositions(6)
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    turned_query, turned_key = (positions.turn(one.expand(1, 1, 30, 6), None)[0, 0] for one in (query, key))
    products = turned_query @ turned_key.T
    for distance in (0, 1, 7):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-12)
    assert not torch.isclose(products[0, 0], products[0, 1])


def test_relative_distances_are_clipped() -> None:
    positions = RelativePositions(2, 2)
    with torch.no_grad():
        positions.key.copy_(torch.arange(5.0)[:, None].expand(5, 2))
    rows = positions.rows(positions.key, 2, 6)
    # The queries are places 4 and 5; row 2 of the table is for distance 0.
    assert rows[0, :, 0].tolist() == [0, 0, 0, 1, 2, 3]
    assert rows[1, :, 0].tolist() == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_table_made_in_inference_serves_training(positions: str) -> None:
    """The table that is kept is no inference tensor, and gradients are those of a model that was never searched."""
    used, fresh = (build_model(small_transformer(positions=positions), 5, 5).train() for _ in range(2))
    source_BS = torch.tensor([[2, 3, 1]])
    with torch.inference_mode():
        used.eval()(source_BS, torch.tensor([3]), source_BS)
    tables = [
        value.rows for module in used.modules() for value in vars(module).values() if isinstance(value, GrowingTable)
    ]
    assert tables
    assert all(table is not None and not table.is_inference() for table in tables)
    for model in (used.train(), fresh):
        model.bits.reseed(1)
        model(source_BS, torch.tensor([3]), source_BS).sin().sum().backward()
    for (name, mine), theirs in zip(used.named_parameters(), fresh.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None, name
        assert torch.equal(mine.grad, theirs.grad), name


def test_learned_tables_stand_on_both_sides() -> None:
    names = build_model(small_transformer(positions="learned"), 5, 5).state_dict()
    assert names["source_positions.embedding.weight"].shape == names["target_positions.embedding.weight"].shape
    assert isinstance(small_transformer(positions="learned"), TransformerConfig)
    assert LearnedPositions(7, 3).max_positions == 7
