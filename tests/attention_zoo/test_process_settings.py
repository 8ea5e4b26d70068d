"""Settings of the process change nothing: default dtype, default device, deterministic mode, gradients, threads."""

import contextlib

import torch
from contract import assert_close, every_case, inputs, make, padding_mask


@contextlib.contextmanager
def other_settings():
    """All at once. Whatever is made without a device is seen: it has no numbers."""
    settings = (
        (torch.set_default_dtype, torch.get_default_dtype(), torch.float64),
        (torch.use_deterministic_algorithms, False, True),
        (torch.set_num_threads, torch.get_num_threads(), 3),
    )
    with contextlib.ExitStack() as after, torch.device("meta"):
        for change, before, during in settings:
            after.callback(change, before)
            change(during)
        yield


def made_and_run(name, causal, mask, given):
    """The output, its gradients, the weights and, where it decodes, a step, of an instance made here."""
    attention = make(name, causal=causal, device="cpu")
    info = attention.info
    leaves = [x.detach().clone().requires_grad_() for x in given]
    out = attention(*leaves, mask if info.padding else None)
    gradients = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True, materialize_grads=True)
    results = [out.detach(), *gradients, *attention.state_dict().values()]
    if info.decode and causal:
        with torch.no_grad():
            prompt, state = attention.eval().prefill(*(x[:, :, :-1] for x in given))
            results += [prompt, attention.step(*(x[:, :, -1:] for x in given), state)[0]]
    attention.resample(3)
    return [*results, attention(*given).detach(), *attention.state_dict().values()]


@every_case
def test_settings_of_the_process_change_nothing(name, causal):
    given, mask = inputs(name), padding_mask()
    expected = made_and_run(name, causal, mask, given)
    with other_settings():
        actual = made_and_run(name, causal, mask, given)
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.device) == (other.dtype, other.device)
        assert_close(name, one.double(), other.double())


@every_case
def test_inference_mode_changes_nothing(name, causal):
    """Nor does what was made or cached inside of it hinder gradients outside."""
    given = inputs(name)
    expected = make(name, causal=causal)(*given).detach()
    with torch.inference_mode():
        attention = make(name, causal=causal)
        attention.resample(attention.seed)
        assert_close(name, attention(*given), expected)
    leaves = [x.clone().requires_grad_() for x in given]
    out = attention(*leaves)
    assert_close(name, out.detach(), expected)
    if out.requires_grad:
        torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
