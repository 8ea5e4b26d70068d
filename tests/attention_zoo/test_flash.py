import importlib.util
import sys

import pytest
import torch
from small import HEADS, assert_close, assert_near_exact, maker, masks, outcomes, sized, steps_after
from torch.profiler import ProfilerActivity, profile

from attention_zoo import UnsupportedError, flash
from attention_zoo.flash import AUTO_ORDER, BACKENDS

N, H = 37, 8


make = maker("flash", head_dim=H)
qkv = sized(N, h=H, batch=3, requires_grad=True)


@pytest.mark.parametrize("mask", ["full", "padded"])
@pytest.mark.parametrize("causal, keys, scale", [(False, N, 0.7), (True, N, None), (False, 20, None), (False, 1, 0.7)])
def test_equals_softmax_with_gradients(causal, keys, mask, scale):
    attention, given = make(causal=causal, scale=scale, impl="fused"), qkv(keys=keys)
    expected = outcomes(make("softmax", causal=causal, scale=scale), given, masks(keys)[mask])
    assert_close(outcomes(attention, given, masks(keys)[mask]), expected)
    assert attention.executed == ("fused", "flash")


@pytest.mark.parametrize("mask", ["full", "padded"])
def test_a_layout_that_pytorch_s_kernel_does_not_take_is_copied_instead_of_computed_by_its_math(mask):
    attention, given = make(causal=True), qkv()
    expected = attention(*given, masks(N)[mask])
    # As after a convolution over tokens: the values of a head are N apart.
    scattered = [x.mT.contiguous().mT for x in given]
    with profile(activities=[ProfilerActivity.CPU]) as ran:
        out = attention(*scattered, masks(N)[mask])
    names = {event.key for event in ran.key_averages()}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names and "aten::bmm" not in names
    assert torch.equal(out, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_reference_is_softmax_itself_and_runs_no_kernel(causal, monkeypatch):
    given, mask = qkv(), masks(N)["padded"]
    expected = make("softmax", causal=causal)(*given, mask)
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", None)
    reference = make(causal=causal, impl="reference")
    assert torch.equal(reference(*given, mask), expected) and reference.executed == ("reference", None)


@pytest.mark.parametrize("backend", ["cudnn", "efficient"])
def test_backends_that_a_cpu_lacks_are_refused_by_name(backend):
    attention = make(backend=backend)
    with pytest.raises(UnsupportedError, match=f"^impl=auto: backend={backend}: needs a GPU; a CPU has flash only$"):
        attention(*qkv())
    assert attention.executed is None


@pytest.fixture
def sdpa_calls(monkeypatch):
    """The shapes of the queries and masks that PyTorch's fused attention is called with."""
    calls, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def counted(query, key, value, mask=None, **options):
        calls.append((tuple(query.shape), None if mask is None else tuple(mask.shape)))
        return kernel(query, key, value, mask, **options)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", counted)
    return calls


@pytest.mark.parametrize("mask", ["full", "padded"])
@pytest.mark.parametrize("impl", ["auto", "fused", "reference"])
def test_every_step_is_one_call_of_the_kernel(impl, mask, sdpa_calls):
    attention, mask = make(causal=True, impl=impl), masks(30)[mask]
    for position, out, expected in steps_after(30, attention, qkv(), mask):
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        if impl == "reference":
            assert attention.executed == ("reference", None) and not sdpa_calls
        else:
            assert attention.executed == ("fused", "flash")
            # Without padding there is no mask: a GPU's flash kernel takes none.
            assert sdpa_calls[-1] == ((3, HEADS, 1, H), None if mask is None else (3, 1, 1, position + 1))
            assert len(sdpa_calls) == position - 28, "with that of the prompt"


@pytest.fixture
def asked(monkeypatch):
    """The backends that were asked, in order; what they refuse is set by name."""

    class Asked(list):
        def __init__(self):
            super().__init__()
            self.refuse = {}

    asked = Asked()

    def ask(name, *_):
        asked.append(name)
        return asked.refuse.get(name)

    monkeypatch.setattr(flash, "_backend_refusal", ask)
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91900)
    return asked


def on_meta(n=256, keys=None, dtype=torch.float32):
    return [torch.empty(2, HEADS, length, H, dtype=dtype, device="meta") for length in (n, keys or n, keys or n)]


def choose(attention, given):
    return attention._choose(*given, False, True).backend


def test_backends_are_asked_about_the_layout_that_they_will_get(monkeypatch):
    strides = []
    monkeypatch.setattr(flash, "_backend_refusal", lambda name, *given: strides.extend(x.stride(-1) for x in given[:3]))
    choose(make(causal=True, backend="flash"), [x.mT for x in on_meta(H)])
    assert strides == [1, 1, 1]


def test_auto_takes_the_first_backend_that_takes_the_input(asked):
    assert choose(make(causal=True), on_meta()) == "cudnn" and asked == ["cudnn"]
    asked.refuse = {"cudnn": "too new"}
    assert choose(make(causal=True), on_meta()) == "flash"
    assert choose(make(causal=True, backend="efficient"), on_meta()) == "efficient"


def test_what_no_kernel_takes_is_refused_with_all_reasons_and_never_computed_another_way(asked):
    """As float64 on a GPU."""
    asked.refuse = dict.fromkeys(AUTO_ORDER, "no float64")
    reasons = "cudnn: no float64; flash: no float64; efficient: no float64"
    for impl in ("auto", "fused"):
        attention = make(impl=impl)
        with pytest.raises(UnsupportedError) as refused:
            attention._chooses_fused(attention._why_not_fused, *on_meta(dtype=torch.float64), None)
        assert str(refused.value) == f"impl={impl}: backend=auto: cannot take the input ({reasons})"
    reference = make(impl="reference")
    assert not reference._chooses_fused(reference._why_not_fused, *on_meta(dtype=torch.float64), None)


@pytest.mark.parametrize("version, n, backend", [(91500, 256, "cudnn"), (91500, 255, "flash"), (91501, 255, "cudnn")])
def test_auto_passes_over_a_cudnn_that_errs_at_this_length(version, n, backend, asked, monkeypatch):
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: version)
    assert choose(make(causal=True), on_meta(n)) == backend
    assert choose(make(causal=True, backend="cudnn"), on_meta(n)) == "cudnn", "a forced backend is not replaced"


def test_a_choice_is_remembered_for_the_same_question_only(asked):
    attention = make(causal=True)
    for _ in range(2):
        choose(attention, on_meta())
    assert len(asked) == 1
    with torch.no_grad():
        choose(attention, on_meta())
    assert len(asked) == 2, "grad mode"
    for index in range(3):
        given = on_meta()
        given[index].requires_grad_()
        choose(attention, given)
        assert len(asked) == 3 + index, "query, key or value requires grad"
    strided = [x.mT for x in on_meta(H)]
    for given in (on_meta(128), on_meta(256, 255), on_meta(dtype=torch.bfloat16), on_meta(H), strided):
        asked.clear()
        choose(attention, given)
        assert len(asked) == 1
    asked.clear()
    attention._choose(*on_meta(), False, False)
    attention._choose(*on_meta(), True, False)
    assert len(asked) == 2, "causal or not, masked or not"


def test_a_long_decoding_asks_no_more_than_once_for_each_remainder_of_a_tile(asked):
    attention, (query, *cache) = make(causal=True), on_meta(1, 1000)
    for keys in range(1, 1000):
        attention._choose(query, *(x[:, :, :keys] for x in cache), False, False)
    assert len(asked) <= 130 and len(attention._choices) <= 130


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_flash_attn_without_the_package_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UnsupportedError, match=r"^backend=flash_attn: the package flash-attn is not installed"):
        make(backend="flash_attn")
    # What flash-attn-4 installs: a namespace package of the same name with another module.
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("flash_attn") is not None
    try:
        with pytest.raises(UnsupportedError, match="not installed"):
            make(backend="flash_attn")
    finally:
        sys.modules.pop("flash_attn", None)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", ["full", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [256, 577])  # whole tiles, and a part of one
def test_a_gpu_backend_equals_softmax_or_refuses(n, backend, dtype, causal, mask):
    attention = make(head_dim=64, backend=backend, causal=causal)
    # Relative error of the whole tensor: bfloat16 rounds at 2^-9; float32 kernels may use TF32, 2^-11.
    tolerance = {torch.bfloat16: 2e-2, torch.float32: 2e-3, torch.float64: 1e-10}[dtype]
    try:
        given = qkv(n, h=64, dtype=dtype, device="cuda")
        assert_near_exact(attention, make("softmax", head_dim=64, causal=causal), given, masks(n)[mask], tolerance)
    except UnsupportedError as error:
        assert str(error).startswith(f"impl=auto: backend={backend}: ")
        assert dtype == torch.float64 or backend not in ("auto", "efficient"), "it takes all that a GPU does"
        is_new = torch.cuda.get_device_capability() >= (8, 0)
        assert (backend, dtype, mask) != ("flash", torch.bfloat16, "full") or not is_new, "others are compared with it"
        return
    assert dtype != torch.float64
    assert attention.executed.backend in (AUTO_ORDER if backend == "auto" else (backend,))


def test_choices_of_shapes_long_gone_are_forgotten(monkeypatch):
    monkeypatch.setattr(flash, "MOST_CHOICES", 3)
    attention = make()
    for n in range(1, 9):
        attention(*torch.randn(3, 1, HEADS, n, H).unbind())
    assert 0 < len(attention._choices) <= 3
