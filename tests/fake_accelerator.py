"""A second device for machines without a GPU: its tensors compute on the CPU, and refuse what a GPU refuses.

PyTorch's hook for devices from elsewhere (PrivateUse1) lets tensors claim to be on `DEVICE`. Each operation runs on
the CPU tensors inside, after three checks that a GPU makes: all tensors are on one device, no generator is of another,
and, inside `no_synchronisation`, nothing waits for the device. A GPU's attention kernels are those of `fake_kernels`.
`torch.tensor(..., device=DEVICE)` is beyond it.
"""

import contextlib

import torch
from fake_kernels import KERNELS
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

DEVICE = "fake"
CPU = torch.device("cpu")


class Backend(_DummyBackendModule):
    """What PyTorch asks about the device: `fork_rng` and checkpointing in other tests of the process do, too."""

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

    def get_rng_state(self, device=None):
        return None

    def set_rng_state(self, state, device=None):
        pass


# PyTorch starts a thread for each device at the first backward pass of a process: before any test.
_setup_privateuseone_for_python_backend(DEVICE, Backend())

_waiting_is_an_error = False


class SynchronisationError(RuntimeError):
    """Something needed the device to finish first."""


@contextlib.contextmanager
def no_synchronisation():
    """As `torch.cuda.set_sync_debug_mode("error")`: what waits for the device raises, and is named."""
    global _waiting_is_an_error
    before, _waiting_is_an_error = _waiting_is_an_error, True
    try:
        yield
    finally:
        _waiting_is_an_error = before


class FakeTensor(torch.Tensor):
    """A tensor on `DEVICE`; its numbers are in `inner`, on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=torch.device(DEVICE, 0), **layout)
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, *args, **(kwargs or {}))

    def new_tensor(self, data, dtype=None):
        return torch.tensor(data, dtype=dtype or self.dtype).to(DEVICE)

    def tolist(self):
        return self.cpu().tolist()

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self.detach().clone().requires_grad_(self.requires_grad))

    def __repr__(self):
        return f"FakeTensor({self.inner!r})"


def _map(change, x):
    """`x` with `change` applied to its tensors; PyTorch's own takes longer than the operations here."""
    if isinstance(x, torch.Tensor):
        return change(x)
    return type(x)(_map(change, part) for part in x) if isinstance(x, list | tuple) else x


def _run(function, *args, **kwargs):
    tensors = []
    _map(tensors.append, [*args, *kwargs.values()])
    device = kwargs.get("device")
    if device is None:
        on_device = any(isinstance(x, FakeTensor) for x in tensors)
    else:
        on_device, kwargs = torch.device(device).type == DEVICE, kwargs | {"device": CPU}
    _check_devices(function, tensors)
    _check_generator(function, kwargs.get("generator"), on_device)
    if _waiting_is_an_error and _waits(function, tensors, args, kwargs, on_device):
        raise SynchronisationError(f"{function} waits for the device")
    wrappers = {id(x.inner): x for x in tensors if isinstance(x, FakeTensor)}
    values = _map(lambda x: x.inner if isinstance(x, FakeTensor) else x, [*args, *kwargs.values()])
    compute = KERNELS.get(_base_name(function), function) if on_device else function
    out = compute(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))
    if not on_device:
        return out

    def wrapped(x):
        # What an operation wrote to is the tensor that it was given.
        return wrappers[id(x)] if id(x) in wrappers else FakeTensor(x)

    return _map(wrapped, out)


def _base_name(function):
    return function.overloadpacket.__name__


def _check_devices(function, tensors):
    """A number of the CPU is welcome everywhere, indices are fetched, and a copy is how tensors move."""
    if _base_name(function) in ("copy_", "_to_copy", "index", "index_put", "index_put_"):
        return
    devices = {x.device.type for x in tensors if x.dim() or isinstance(x, FakeTensor)}
    if len(devices) > 1:
        raise RuntimeError(f"{function}: expected all tensors to be on the same device, got {sorted(devices)}")


def _check_generator(function, generator, on_device):
    drawn = torch.Tag.nondeterministic_seeded in function.tags and _base_name(function) not in KERNELS
    if not on_device or not drawn:
        return
    kind = "the global one" if generator is None else generator.device.type
    raise RuntimeError(f"{function}: expected a generator of the device {DEVICE!r}, got {kind}")


def _waits(function, tensors, args, kwargs, on_device):
    name = _base_name(function)
    if name in ("copy_", "_to_copy"):
        moves = len({x.device.type for x in tensors}) > 1 or on_device != isinstance(tensors[0], FakeTensor)
        return moves and not (kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,)))
    if not any(isinstance(x, FakeTensor) for x in tensors):
        return False
    if name in ("index", "index_put", "index_put_"):
        # A mask is counted first; an index on the CPU is copied.
        indices = [x for x in args[1] if x is not None]
        return any(x.dtype in (torch.bool, torch.uint8) or not isinstance(x, FakeTensor) for x in indices)
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return False
    sizes_or_numbers = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return name in ("is_nonzero", "item", "_linalg_check_errors") or bool(sizes_or_numbers & set(function.tags))


_library = torch.library.Library("_", "IMPL")
_library.fallback(_run, "PrivateUse1")
