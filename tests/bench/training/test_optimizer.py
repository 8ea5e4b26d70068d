"""Muon: which weights it changes, and how."""

import pytest
import torch
from loops import trained, trainer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from attention_zoo.third_party.fla import FlaAttention
from bench.models.layers import ShortConvolution
from bench.training.optimizer import optimizer_of
from bench.training.schedule import learning_rate
from bench.training.settings import Training


def change_of(one):
    before = {name: p.detach().clone() for name, p in one.model.named_parameters()}
    one.train_step()
    return {name: p.detach() - before[name] for name, p in one.model.named_parameters()}


def orthogonalised(values):
    """What its five Newton-Schulz iterations make of singular values (Jordan et al. 2024), in float64."""
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return values


def test_muon_steps_have_the_gradient_s_directions_in_equal_parts_and_the_size_of_adamw_s():
    rate = learning_rate(Training(steps=20, warmup=3, learning_rate=0.02), 0)
    one = trainer(optimizer="muon", weight_decay=0.0, clip=None)
    for name, change in change_of(one).items():
        if change.dim() == 2 and "embedding" not in name:
            left, values, right = torch.linalg.svd(one.model.get_parameter(name).grad, full_matrices=False)
            parts = -left.T @ change @ right.T / (0.2 * max(change.shape) ** 0.5 * rate)
            # bfloat16, in which it iterates, has three digits: rounding is all there is of the smallest.
            parts = parts[:, values > 1e-3 * values[0]][values > 1e-3 * values[0]]
            torch.testing.assert_close(parts, orthogonalised(values)[: len(parts)].diag(), atol=0.05, rtol=0)


def test_embeddings_and_vectors_have_adamw_beside_it():
    muon, adamw = (change_of(trainer(optimizer=name, weight_decay=0.1)) for name in ("muon", "adamw"))
    for name, change in muon.items():
        alike = change.dim() != 2 or "embedding" in name
        assert torch.equal(change, adamw[name]) is alike, name


@pytest.mark.parametrize("module", [nn.Embedding(4, 3), nn.Conv1d(3, 4, 2), nn.Conv2d(3, 4, 2), ShortConvolution(3, 4)])
def test_what_is_neither_a_matrix_nor_a_stack_of_them_has_adamw_alone(module):
    linear = nn.Linear(3, 4)
    made = optimizer_of(nn.ModuleList([module, linear]), Training(optimizer="muon"))
    adamw, muon = ({id(p) for group in part.param_groups for p in group["params"]} for part in made.parts)
    assert adamw == {id(p) for p in (*module.parameters(), linear.bias)} and muon == {id(linear.weight)}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_a_module_names_no_weight_decay_has_none_and_adamw(optimizer):
    """As the decay rates of fla's mechanisms, of which some have two dimensions."""
    linear = nn.Linear(3, 4)
    linear.log_rate, linear.no_weight_decay = nn.Parameter(torch.randn(2, 3)), ("log_rate",)
    before = linear.log_rate.clone()
    made = optimizer_of(linear, Training(optimizer=optimizer, weight_decay=0.1, learning_rate=0.1))
    for weight in linear.parameters():
        weight.grad = torch.zeros_like(weight)
    made.step()
    assert torch.equal(linear.log_rate, before) and FlaAttention.no_weight_decay == ("log_rate",)
    assert made.state[linear.log_rate].keys() == {"step", "exp_avg", "exp_avg_sq"}


def test_all_weights_are_changed_and_their_rates_are_the_schedule_s():
    one = trained(trainer(optimizer="muon"), 4)
    assert all(change.abs().max() > 0 for change in change_of(one).values())
    assert {group["lr"] for group in one.optimizer.param_groups} == {learning_rate(one.settings, 4)}
    assert len(one.optimizer.state) == len(list(one.model.parameters()))


class ProductDtypes(TorchDispatchMode):
    """Notes the dtypes of the matrices that are multiplied."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.seen.add(args[-1].dtype)
        return func(*args, **(kwargs or {}))


def test_muon_multiplies_in_float32_on_a_cpu_and_rounds_as_torch_s_own():
    one, other = (trained(trainer(optimizer="muon"), 1) for _ in range(2))
    before = [p.detach().clone() for p in one.model.parameters()]
    with ProductDtypes() as products:
        one.optimizer.step()
    assert products.seen == {torch.float32}
    with ProductDtypes() as products:
        for part in other.optimizer.parts:
            part.step()
    assert products.seen == {torch.bfloat16}
    for old, ours, theirs in zip(before, one.model.parameters(), other.model.parameters(), strict=True):
        assert (ours - theirs).norm() <= 0.03 * (theirs - old).norm()


class Products(nn.Module):
    """A stack of two matrices, or the two by themselves, and a convolution of each channel."""

    def __init__(self, matrices, is_stack):
        super().__init__()
        self.stack = nn.Parameter(matrices.clone()) if is_stack else None
        self.apart = nn.ParameterList([] if is_stack else [each.clone() for each in matrices])
        self.convolution = nn.Parameter(torch.ones(4, 1, 3))

    def forward(self, x):
        for matrix in self.apart if self.stack is None else self.stack:
            x = (x @ matrix).tanh()
        return x.sum() + self.convolution.square().sum()


def test_each_matrix_of_a_stack_is_updated_by_itself_and_resumes():
    settings = Training(optimizer="muon", learning_rate=0.02)
    matrices, x = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0)).unbind()
    models = [Products(matrices, is_stack) for is_stack in (True, False)]
    optimizers = [optimizer_of(model, settings) for model in models]
    for step in range(4):
        if step == 2:
            state = optimizers[0].state_dict()
            optimizers[0] = optimizer_of(models[0], settings)
            optimizers[0].load_state_dict(state)
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(x[0]).backward()
            optimizer.step()
    stack, apart = models[0].stack, torch.stack(list(models[1].apart))
    assert torch.equal(stack, apart) and not torch.equal(stack, matrices)
    assert torch.equal(models[0].convolution, models[1].convolution), "AdamW has it"
    assert optimizers[0].parts[0].param_groups[0]["params"][0] is models[0].convolution
