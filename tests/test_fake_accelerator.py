"""The fake device notices what a GPU would refuse or wait for; what it computes: `attention_zoo/test_devices.py`."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

if torch.cuda.is_available():
    pytest.skip("its registration would take the GPU's place", allow_module_level=True)
fake_accelerator = pytest.importorskip("fake_accelerator", exc_type=ImportError)
DEVICE = fake_accelerator.DEVICE
SynchronisationError, no_synchronisation = fake_accelerator.SynchronisationError, fake_accelerator.no_synchronisation


@pytest.fixture
def here():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def there(here):
    return here.to(DEVICE)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda here, there: here + there,
        lambda here, there: there @ here.mT,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: there.add_(here),
        lambda here, there: here * there.sum(),  # a number on the device is on the device
        lambda here, there: nn.Linear(4, 2).double()(there),
    ],
)
def test_a_mix_of_devices_raises(mixed, here, there):
    with pytest.raises(RuntimeError, match="on the same device"):
        mixed(here, there)


def test_a_number_of_the_cpu_may_join(here, there):
    number = torch.tensor(3.0, dtype=torch.float64)
    with no_synchronisation():
        assert (there * number).device.type == DEVICE
        there.masked_fill(there > 0, number)
        there[0] = number
    assert torch.equal(there[1:].cpu(), here[1:])


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.rand(3, generator=g, device=DEVICE),
        lambda g: torch.rand(3, device=DEVICE),
        lambda g: F.dropout(torch.ones(3, device=DEVICE), 0.5),
    ],
)
def test_a_generator_of_another_device_raises_and_so_does_the_global_one(draw):
    with pytest.raises(RuntimeError, match=f"generator of the device '{DEVICE}'"):
        draw(torch.Generator().manual_seed(0))


class Waits(torch.autograd.Function):
    """Its backward pass reads a number, in the thread of the device."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * grad.max().item()


WAITING = {
    "item": lambda x: x.sum().item(),
    "if": lambda x: 1 if (x > 0).any() else 0,
    "tolist": lambda x: x.tolist(),
    "to": lambda x: x.to("cpu", torch.float32),
    "copy to the cpu": lambda x: torch.empty(3, 4, dtype=x.dtype).copy_(x),
    "copy from the cpu": lambda x: x.copy_(torch.zeros(3, 4, dtype=x.dtype)),
    "to the device": lambda x: torch.zeros(3).to(DEVICE),
    "nonzero": lambda x: x.nonzero(),
    "mask as an index": lambda x: x[x > 0],
    "assignment by a mask": lambda x: x.index_put_((x > 0,), x.new_ones(1)),
    "index on the cpu": lambda x: x[torch.tensor([0, 2])],
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(3, dtype=torch.long, device=DEVICE), 0),
    "equal": lambda x: torch.equal(x, x + 1),
    "backward": lambda x: torch.autograd.grad(Waits.apply(x.requires_grad_()).sum(), x),
}


@pytest.mark.parametrize("call", WAITING.values(), ids=WAITING)
def test_waiting_for_the_device_raises_where_it_is_forbidden_and_only_there(call, there):
    call(there.clone())
    with pytest.raises(SynchronisationError, match=r"^aten\..* waits for the device"), no_synchronisation():
        call(there)
    call(there.detach().clone())


def test_what_does_not_wait_is_allowed(there):
    with no_synchronisation():
        order = there.argsort(-1)
        there.gather(-1, order)[:, order[0]]
        there.topk(2).values.sum().clamp_min(1)
        there.repeat_interleave(2, 0)
        there[1:, ::2] = 0
        there.scatter(1, order, there).masked_fill_(there > 0, 0)
        torch.arange(3, device=DEVICE).to(torch.float32)
        torch.zeros(3).to(DEVICE, non_blocking=True)
        torch.ones(3) @ torch.ones(3)
        assert torch.ones(3).sum().item() == 3
