"""`python -m tools.stub_driver.launch REGEX` launches matching calls of the kernels' catalogue with a stub driver.

The variables `TRITON_LIBCUDA_PATH` and `LD_LIBRARY_PATH` point to the stub. Tensors are on the CPU; Triton and PyTorch
are patched to report a GPU.
"""

import re
import sys
import types

import torch
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

from attention_zoo.ops import launching
from tools.kernels.call import catalogue

torch.cuda.get_device_capability = lambda *given: (9, 0)
torch.cuda.current_device = lambda: 0
torch.cuda.set_device = lambda device: None
torch.cuda.is_available = lambda: True
torch.cuda.current_stream = lambda device=None: types.SimpleNamespace(cuda_stream=0)  # type: ignore
torch._C._cuda_getCurrentRawStream = lambda device: 0

active = CudaDriver()
active.get_current_stream = lambda device=None: 0
active.get_current_device = lambda: 0
driver.set_active(active)
launching.architecture = lambda device: 90  # type: ignore

for calls in catalogue().values():
    for call in calls:
        if re.search(sys.argv[1], call.name):
            print(f"call {call.name}", flush=True)
            call.make(torch.device("cpu"))()
