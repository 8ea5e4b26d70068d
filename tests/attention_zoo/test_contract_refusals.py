"""What every mechanism refuses, and what it says of itself."""

import importlib.util
import math

import pytest
import torch
from contract import HEAD_DIM, HEADS, LENGTH, SIZE, every_case, every_name, inputs, make, padding_mask
from zoo_cases import takes_causal

import attention_zoo
from attention_zoo import UnsupportedError


@every_name
def test_bad_inputs_are_refused(name):
    attention, (query, key, value) = make(name), inputs(name)
    for bad in (query[0], query[:, :1], query[..., :-1], query[:, :, :0]):
        with pytest.raises(ValueError, match=r"^(query|seq_len)\b.*: must be"):
            attention(bad, bad, bad)
    for given, said in (
        ((query, key, value[:, :, 1:]), r"^value\.shape="),
        ((query, key[:1], value[:1]), r"^key\.shape="),
        ((query, key.half(), value), r"^key\.dtype="),
        (inputs(name, LENGTH + 1), rf"^seq_len={LENGTH + 1}: must be between 1 and max_seq_len={LENGTH}"),
    ):
        with pytest.raises(ValueError, match=said):
            attention(*given)
    with pytest.raises(UnsupportedError, match="int64"):
        attention(query.long(), key.long(), value.long())


def test_rows_and_items_that_are_not_there_are_refused():
    attention, (query, key, value) = make("softmax"), inputs("softmax")
    for given, said in (
        ({"items": torch.tensor([0, 3, 5])}, r"items=\[5\]: must be between 0 and 4"),
        ({"items": torch.tensor([0, 1])}, r"items=\[0, 1\]: must be 3 of them"),
        ({"positions": torch.tensor([LENGTH])}, rf"positions=\[{LENGTH}\]: must be between 0 and {LENGTH - 1}"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            attention.output_rows(query, key, value, **({"positions": torch.tensor([0]), "batch_size": 5} | given))
    for rows, said in (
        ([-1], rf"rows=\[-1\]: must be between 0 and {LENGTH - 1}"),
        ([0, LENGTH], rf"rows=\[{LENGTH}\]: must be between 0"),
        ([True] * LENGTH, r"rows\.dtype="),
        (1, r"rows\.shape="),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            attention.attention_matrix(query, key, rows=torch.tensor(rows))
    with pytest.raises(ValueError, match=r"^key\.shape="):
        attention.attention_matrix(query, key[:1])


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in attention_zoo.list_attentions()
        if not attention_zoo.info(name).package and torch.float16 not in attention_zoo.info(name).dtypes
    ],
)
def test_what_overflows_in_float16_is_refused_under_autocast_too(name):
    attention, given = make(name), [x.float() for x in inputs(name)]
    with (
        torch.autocast("cpu", dtype=torch.float16),
        pytest.raises(UnsupportedError, match="does not take autocast"),
    ):
        attention.float()(*given)


def test_what_no_generator_dtype_or_sequence_can_be_is_refused():
    attention = make("performer")
    for asked, said in (
        (lambda: make("performer", seed=2**63), rf"seed={2**63}: must be below"),
        (lambda: attention.resample(-1), "seed=-1: must be"),
        (lambda: attention.flops(1, -5), "seq_len=-5: must be"),
        (lambda: attention.flops(1.5, 5), r"batch=1\.5: must be"),
        (lambda: attention_zoo.create("softmax", head_dim=8, num_heads=1, dtype="float32"), "dtype='float32': must be"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            asked()


@every_name
def test_bad_masks_are_refused(name):
    attention, given = make(name), inputs(name)
    if not attention_zoo.info(name).padding:
        with pytest.raises(UnsupportedError, match="key_padding_mask"):
            attention(*given, padding_mask())
        return
    with pytest.raises(ValueError, match=r"^key_padding_mask\.shape="):
        attention(*given, padding_mask()[:, 1:])
    with pytest.raises(ValueError, match=r"^key_padding_mask\.dtype="):
        attention(*given, padding_mask().float())
    with pytest.raises(ValueError, match=r"^key_padding_mask\.device=device\(type='meta'\): must be key's cpu$"):
        attention(*given, padding_mask().to("meta"))


@every_name
def test_bad_arguments_are_refused_by_name(name):
    for key, bad in [("head_dim", 0), ("num_heads", 1.5), ("seed", -1), ("causal", 1), ("impl", "fast")]:
        with pytest.raises(ValueError, match=f"^{key}={bad!r}: must be"):
            make(name, **{key: bad})
    for impl in {"reference", "fused"} - set(attention_zoo.info(name).implementations):
        with pytest.raises(UnsupportedError, match=f"impl={impl}"):
            make(name, impl=impl)
    with pytest.raises(ValueError, match=r"^colour='red': unknown"):
        make(name, colour="red")
    of_kind = {bool: (1, None), int: (-1, 2.5, True, "4"), float: (math.nan, "0", -1.0), str: ("other",)}
    for key, default in attention_zoo.hyperparameters(name).items():
        with pytest.raises(ValueError, match=f"^{key}_=1: unknown; did you mean {key}"):
            make(name, **{f"{key}_": 1})
        for bad in of_kind.get(type(default), ()):
            if (key, bad) == ("alpha", -1.0):
                continue  # it may be any number
            with pytest.raises(ValueError, match=f"^{key}={bad!r}: must be"):
                make(name, **{key: bad})


@pytest.mark.parametrize("name", [name for name in attention_zoo.list_attentions() if attention_zoo.info(name).package])
def test_without_its_package_it_is_listed_and_refused(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    package = attention_zoo.info(name).package
    reason = rf"^{name}: needs the package {package}: pip install {package} \(no module \w+\)$"
    with pytest.raises(UnsupportedError, match=reason):
        attention_zoo.create(name, head_dim=HEAD_DIM, num_heads=HEADS, causal=takes_causal(name), max_seq_len=LENGTH)


@pytest.mark.parametrize(
    "name", [name for name in attention_zoo.list_attentions() if not attention_zoo.info(name).package]
)
def test_a_printed_mechanism_says_its_settings(name):
    own, size = attention_zoo.hyperparameters(name), attention_zoo.info(name).size
    printed = repr(make(name, seed=3, block_size=2) if "block_size" in own else make(name, seed=3)).splitlines()
    said = printed[0] if len(printed) == 1 else printed[1]
    assert f"head_dim={HEAD_DIM}, num_heads={HEADS}" in said and "seed=3" in said
    expected = own | ({} if size is None else {size: SIZE}) | {key: 2 for key in ("block_size",) if key in own}
    assert all(f"{key}={value!r}" in said for key, value in expected.items() if key != "bucket_size")


@every_case
def test_what_ran_is_noted_and_what_was_asked_for_stays(name, causal):
    info, given = attention_zoo.info(name), inputs(name)
    for impl in ("auto", *info.implementations):
        attention = make(name, causal=causal, impl=impl)
        assert attention.impl == impl and attention.executed is None
        try:
            attention(*given)
        except UnsupportedError as error:
            assert impl == "fused" and str(error).startswith("impl=fused: ")
            assert attention.executed is None
            continue
        assert attention.impl == impl
        assert attention.executed.impl == impl or impl == "auto"
        assert (attention.executed.backend is None) == (attention.executed.impl == "reference")


NUMBERS = "a list of 2 to 7 numbers"
OUT_OF_RANGE = [
    ("bigbird", "num_random_blocks", (-1, True), "an integer"),
    ("flash", "backend", ("math",), "one of auto, flash"),
    ("informer", "num_samples", (0,), "an integer"),
    ("linear", "block_size", (0,), "an integer"),
    ("linformer", "init_std", (0, -1.0), "a finite number above 0"),
    ("linformer", "max_seq_len", (None,), "an integer"),
    ("local", "block_size", (0,), "an integer"),
    ("local", "degree", (3,), "even"),
    ("lucidrains_linformer", "max_seq_len", (None,), "an integer"),
    ("nystromformer", "conv_kernel_size", (0, True), "an integer"),
    ("nystromformer", "conv_kernel_size", (34,), "odd, or None"),
    ("performer", "redraw_interval", (0,), "an integer"),
    ("polynomial", "degree", (3,), "even"),
    ("polynomial", "scale", (0,), "a finite number above 0"),
    ("polynomial_square", "degree", (7,), "at most 6"),
    ("polynomial_square", "coefficients", ((), [1.0], [1.0] * 8, 3, "123", {0: 1.0, 1: 1.0}), NUMBERS),
    ("polynomial_square", "coefficients", ([1.0, "2"], [1.0, None], [1.0, True], [1.0, math.nan]), "a finite number"),
    ("polynomial_square", "coefficients", ([0, 0.0, 0],), "not all zero"),
    ("polysketch", "degree", (6, 1), "a power of two"),
    ("polysketch", "scale", (0,), "a finite number above 0"),
    ("softmax", "scale", (0, math.nan), "a finite number above 0"),
]


@pytest.mark.parametrize("name, key, values, allowed", OUT_OF_RANGE)
def test_hyperparameters_out_of_range_are_refused(name, key, values, allowed):
    for bad in values:
        with pytest.raises(ValueError, match=rf"^{key}=.*: must be {allowed}"):
            make(name, **{key: bad})


def test_hyperparameters_that_do_not_go_together_are_refused():
    for key in ("sketch_size", "head_dim"):
        with pytest.raises(ValueError, match=f"^{key}=6: must be a power of two"):
            make("polysketch", sketch="srht", **{key: 6})
    with pytest.raises(ValueError, match=r"^coefficients=.*: must be a list of 3 numbers"):
        make("polynomial_square", coefficients=[1.0, 2.0], degree=2)
    with pytest.raises(UnsupportedError, match=r"^local=true: .*causal=true"):
        make("polysketch", local=True)
