"""gkn.ops.dense: products of matrices by oneDNN, and their derivatives."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, jvp

from gkn.ops import dense
from gkn.ops.dense import Linear, linear, mm, mm_into, plus_mm, product

HAS_ONEDNN = dense.has_onednn  # which the fixture replaces
SIZES = [(700, 40, 30), (20, 700, 60), (60, 700, 20), (64, 64, 64), (3, 2, 4), (1, 300, 900), (900, 300, 1)]


@pytest.fixture(params=[True, False], autouse=True)
def onednn(request, monkeypatch):
    """On any machine with both libraries."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(dense, "has_onednn", lambda: request.param)
    return request.param


def some(rng, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_in_every_order_of_memory(rng, size, turned):
    m, k, n = size
    a = some(rng, k, m).T if turned[0] else some(rng, m, k)
    b = some(rng, n, k).T if turned[1] else some(rng, k, n)
    wanted, bias = (a.double() @ b.double()).float(), some(rng, n)
    close(mm(a, b), wanted)
    close(mm(a, b, bias), wanted + bias)
    close(mm_into(torch.empty(m, n), a, b), wanted)
    close(plus_mm(torch.ones(m, n), a, b), wanted + 1)
    rare = some(rng, 2 * m, 2 * k)[::2, ::2]
    close(mm(rare, b), rare.clone() @ b)


@pytest.mark.parametrize("size", SIZES)
def test_layers_and_their_derivatives(rng, size):
    m, k, n = size
    layer, usual = Linear(k, n), nn.Linear(k, n)
    layer.load_state_dict(usual.state_dict())
    x, d = some(rng, m, k).requires_grad_(), some(rng, m, n)
    found, wanted = (
        [out := each(x), *torch.autograd.grad(out, [x, *each.parameters()], d, retain_graph=True)] for each in (layer, usual)
    )
    for a, b in zip(found, wanted, strict=True):
        close(a, b)
    layer.weight.requires_grad_(False)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x)
    close(dx, torch.autograd.grad(usual(x).square().sum(), x)[0])


def test_a_gradient_that_is_one_number(rng):
    """That of a sum, which torch keeps once and not for every place."""
    layer, x = Linear(40, 60), some(rng, 700, 40).requires_grad_()
    found = torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])
    wanted = torch.autograd.grad(nn.functional.linear(x, layer.weight, layer.bias).sum(), [x, *layer.parameters()])
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


def test_batches_of_products(rng):
    a, b = some(rng, 3, 80, 70).requires_grad_(), some(rng, 3, 80, 60).requires_grad_()
    found, wanted = product(a.mT, b), torch.bmm(a.mT, b)
    close(found, wanted)
    d = some(rng, 3, 70, 60)
    for one, other in zip(*(torch.autograd.grad(x, [a, b], d) for x in (found, wanted)), strict=True):
        close(one, other)


def test_second_derivatives(rng):
    found = []
    for each in (linear, nn.functional.linear):
        x, w = (some(torch.Generator().manual_seed(i), 90, 80).requires_grad_() for i in (1, 2))
        (dx,) = torch.autograd.grad(each(x, w).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), [x, w]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))


def test_other_types_and_modes_are_torchs_own(rng):
    layer, usual = Linear(80, 90), nn.Linear(80, 90)
    layer.load_state_dict(usual.state_dict())
    x = some(rng, 70, 80)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), usual(x))
    assert torch.equal(copy.deepcopy(layer).double()(x.double()), copy.deepcopy(usual).double()(x.double()))
    assert layer(x[None]).shape == (1, 70, 90)
    close(torch.vmap(layer)(x[:, None])[:, 0], usual(x))
    found, wanted = (
        jvp(lambda y, each=each: functional_call(each, dict(each.named_parameters()), (y,)), (x,), (x,))[1]
        for each in (layer, usual)
    )
    close(found, wanted)
    assert linear(x[:0], layer.weight, layer.bias).shape == (0, 90)


def test_onednn_is_used_where_it_should_be(rng, onednn, monkeypatch):
    """And not for products so small that finding it takes longer."""
    seen = []
    monkeypatch.setattr(dense, "_onednn", lambda x, weight, bias: seen.append(1) or torch.nn.functional.linear(x, weight, bias))
    linear(some(rng, 4, 4), some(rng, 4, 4))
    linear(some(rng, 99, 99).double(), some(rng, 99, 99).double())
    assert not seen
    linear(some(rng, 99, 99), some(rng, 99, 99))
    product(some(rng, 99, 99), some(rng, 99, 99))
    assert len(seen) == 2 * onednn


@pytest.mark.parametrize(
    ("about", "used"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\n", True),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\n", False),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 26\n", False),
        ("Features\t: asimd\n", False),
    ],
)
def test_processors_on_which_it_is_faster(about, used, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(about)
    monkeypatch.setattr(dense, "Path", lambda _: tmp_path / "cpuinfo")
    assert HAS_ONEDNN.__wrapped__() == (used and torch.backends.mkldnn.is_available())
