import dataclasses
import sys

import pytest
import torch

import attention_zoo
from attention_zoo import Attention, AttentionInfo, UnsupportedError, registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def described(name):
    return AttentionInfo(name=name, paper="none", complexity="O(n)")


def test_create_passes_on_what_it_is_given():
    attention = attention_zoo.create(
        "polysketch", head_dim=8, num_heads=3, causal=True, max_seq_len=16, seed=7, dtype=torch.float64, sketch_size=4
    )
    assert type(attention) is attention_zoo.attention_class("polysketch")
    assert (attention.head_dim, attention.num_heads, attention.max_seq_len, attention.seed) == (8, 3, 16, 7)
    assert attention.causal and attention.sketch_size == 4
    state = [*attention.parameters(), *attention.buffers()]
    assert state and all(x.dtype == torch.float64 for x in state)
    elsewhere = attention_zoo.create("polysketch", head_dim=8, num_heads=1, device="meta")
    assert all(x.device.type == "meta" for x in elsewhere.buffers())


def test_hyperparameters_are_those_of_the_mechanism_with_their_defaults():
    defaults = {"degree": 4, "qk_layernorm": True, "scale": 1.0, "bias": 1.0, "dropout": 0.0}
    assert attention_zoo.hyperparameters("polynomial") == attention_zoo.hyperparameters("flex_polynomial") == defaults
    assert attention_zoo.list_attentions() == sorted(set(attention_zoo.list_attentions()))
    common = {"head_dim", "num_heads", "causal", "max_seq_len", "seed", "impl"}
    for name in attention_zoo.list_attentions():
        assert not common & set(attention_zoo.hyperparameters(name))


def test_an_unknown_name_suggests_near_ones_or_names_all():
    for ask in ("info", "hyperparameters", "attention_class"):
        for wrong, near in (("polisketch", "polysketch"), ("Softmax", "softmax"), ("flsh", "flash")):
            with pytest.raises(ValueError, match=f"^attention='{wrong}': unknown; did you mean .*{near}"):
                getattr(attention_zoo, ask)(wrong)
    with pytest.raises(ValueError, match=r"^attention='sofmax': unknown; did you mean softmax"):
        attention_zoo.create("sofmax", head_dim=1, num_heads=1)
    with pytest.raises(
        ValueError, match=r"did you mean .*polysketch.*; longer names are presets of the benchmark, docs/"
    ):
        attention_zoo.create("polysketch_random_r32", head_dim=1, num_heads=1)
    with pytest.raises(ValueError, match=f"known are {', '.join(attention_zoo.list_attentions())}$"):
        attention_zoo.info("zzz")


def test_register_makes_a_mechanism_known():
    @attention_zoo.register
    class Mean(Attention):
        info = described("mean")

        def __init__(self, *, power=1, seed=3, **common):
            super().__init__(seed=seed, **common)
            self.power = power

        def _attend(self, query, key, value, padding):
            return value.mean(2, keepdim=True).expand_as(query) ** self.power

    value = torch.randn(2, 1, 5, 3, generator=torch.Generator().manual_seed(0))
    out = attention_zoo.create("mean", head_dim=3, num_heads=1, power=2)(value, value, value)
    assert torch.equal(out, value.mean(2, keepdim=True).expand_as(value) ** 2)
    assert attention_zoo.hyperparameters("mean") == {"power": 1} and "mean" in attention_zoo.list_attentions()
    with pytest.raises(UnsupportedError, match="causal=true: mean"):
        attention_zoo.create("mean", head_dim=3, num_heads=1, causal=True)
    with pytest.raises(UnsupportedError, match="mean does not support key_padding_mask"):
        attention_zoo.create("mean", head_dim=3, num_heads=1)(value, value, value, torch.zeros(2, 5, dtype=torch.bool))


def test_a_mechanism_of_rows_knows_neither_masks_nor_positions():
    """Two hooks are a mechanism with an oracle: causal, padded, and for some rows only."""

    @attention_zoo.register
    class Equal(Attention):
        info = dataclasses.replace(described("equal"), causal=True, padding=True)

        def _attend(self, query, key, value, padding):
            return self.attention_matrix(query, key, padding) @ value

        def _rows(self, query, key, visible, positions):
            return (visible / visible.sum(-1, keepdim=True)).expand(*query.shape[:3], -1)

    value, padding = torch.arange(1.0, 6)[None, None, :, None], torch.tensor([[False, True, False, False, False]])
    attention = attention_zoo.create("equal", head_dim=1, num_heads=1, causal=True)
    assert attention(value, value, value, padding).flatten().tolist() == pytest.approx([1, 1, 2, 8 / 3, 13 / 4])
    rows = attention.attention_matrix(value, value, padding, rows=torch.tensor([3, 0]))
    torch.testing.assert_close(rows[0, 0], torch.tensor([[1 / 3, 0, 1 / 3, 1 / 3, 0], [1, 0, 0, 0, 0]]))


def test_a_mechanism_without_a_matrix_says_so_and_has_its_rows_from_the_reference():
    class Doubled(Attention):
        info = described("doubled")

        def _attend(self, query, key, value, padding):
            return 2 * value

    value = torch.arange(6.0).view(3, 1, 2, 1)
    attention = Doubled(head_dim=1, num_heads=1)
    with pytest.raises(UnsupportedError, match=r"^doubled has no attention matrix$"):
        attention.attention_matrix(value, value)
    rows = attention.output_rows(value, value, value, positions=torch.tensor([1]))
    assert rows.flatten().tolist() == [2, 6, 10]


def test_what_nothing_is_compared_with_is_not_approximated():
    softmax = attention_zoo.attention_class("softmax")
    odd = type("Odd", (softmax,), {"info": dataclasses.replace(softmax.info, name="odd", approximates="decay")})
    with pytest.raises(ValueError, match=r"^info.approximates='decay': must be None, softmax or polynomial$"):
        attention_zoo.register(odd)
    assert "odd" not in attention_zoo.list_attentions()


def test_a_name_is_taken_once():
    softmax = attention_zoo.attention_class("softmax")
    for other in ("Other", "Softmax"):  # a class of the same name from elsewhere is another one
        with pytest.raises(ValueError, match=r"^attention='softmax': already registered by attention_zoo.softmax.Soft"):
            attention_zoo.register(type(other, (softmax,), {}))
    assert attention_zoo.attention_class("softmax") is softmax
    assert attention_zoo.register(softmax) is softmax, "a module may be reloaded"


PLUGIN = """
from attention_zoo import Attention, AttentionInfo, register
@register
class Outside(Attention):
    info = AttentionInfo("outside", "none")
    def _attend(self, query, key, value, padding):
        return 2 * value
"""


def test_plugins_outside_the_package_are_registered(tmp_path, monkeypatch):
    """When the package is imported, too: `bench/execution/test_child.py`; what that loads: `bench/test_api.py`."""
    for name in ("outside", "second"):
        (tmp_path / f"{name}_plugin.py").write_text(PLUGIN.replace("outside", name))
        monkeypatch.delitem(sys.modules, f"{name}_plugin", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ATTENTION_ZOO_PLUGINS", "outside_plugin,second_plugin")
    before, value = attention_zoo.list_attentions(), torch.ones(1, 1, 2, 3)
    attention_zoo.import_plugins()
    assert set(attention_zoo.list_attentions()) == {*before, "outside", "second"}
    assert torch.equal(attention_zoo.create("outside", head_dim=3, num_heads=1)(value, value, value), 2 * value)
