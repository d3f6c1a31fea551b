"""Selective checkpoints: what is kept does not run again, gradients are those of a run without checkpoints."""
import functools

import pytest

import tritorch as torch
import tritorch.nn.functional as F
from tritorch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

ATEN = torch.ops.aten


@pytest.fixture(params=["cpu", "cuda"])
def device(request, cuda):
    return cuda if request.param == "cuda" else "cpu"


class Counted(torch.dispatch.Interpreter):
    """How often each operator ran: kept ones do not come to what looks on from outside."""

    def __init__(self):
        self.names = []

    def __call__(self, op, args, out):
        self.names.append(op.__name__)
        return self.proceed(op, args, out)


def block(x, w, b):
    h = F.linear(x, w, b).relu()
    h = F.dropout(h, 0.5) @ w
    values, _ = (h * h).max(0)
    return torch.cat([h.sin() * values, h.t().contiguous().t().exp()]).sum()


def drawn(device):
    torch.manual_seed(0)
    return [torch.randn(*s).to(device).requires_grad_() for s in ((4, 4), (4, 4), (4,))]


def gradients(device, **options):
    inputs = drawn(device)
    torch.manual_seed(1)
    out = checkpoint(block, *inputs, use_reentrant=False, **options) if options else block(*inputs)
    with Counted() as seen:
        out.backward()
    return [out.detach(), *[x.grad for x in inputs]], seen.names


POLICIES = {
    "nothing": lambda context, op, *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE,
    "everything": lambda context, op, *args, **kwargs: True,
    "products": [ATEN.mm.default, ATEN.addmm.default],
    "products but one": [ATEN.mm.default],
    "on the host": lambda context, op, *args, **kwargs: (
        CheckpointPolicy.MUST_CPU_OFFLOAD if op in (ATEN.addmm.default, ATEN.max.default) else CheckpointPolicy.MUST_RECOMPUTE),
    "arithmetic": lambda context, op, *args, **kwargs: op == ATEN.mul.Tensor and context.op_output.shape == args[0].shape,
}


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("name", POLICIES)
def test_gradients(name, early_stop, device):
    want, _ = gradients(device)
    context = functools.partial(create_selective_checkpoint_contexts, POLICIES[name])
    got, ran = gradients(device, context_fn=context, early_stop=early_stop)
    for have, expected in zip(got, want):
        torch.testing.assert_close(have, expected, rtol=0, atol=0)
    kept = {"everything": {"linear", "relu", "max_along", "sin"}, "products": {"linear"}, "on the host": {"linear", "max_along"}}
    again = [n for n in ran if n in ("linear", "relu", "max_along", "sin")]
    assert sorted(again) == sorted({"linear", "relu", "max_along", "sin"} - kept.get(name, set())) or early_stop and set(again).isdisjoint(
        kept.get(name, ()))


def test_what_a_policy_sees():
    seen = []

    def policy(context, op, *args, **kwargs):
        seen.append((str(op), context.is_recompute, len(args) > 0))
        return CheckpointPolicy.PREFER_SAVE

    x, w, _ = drawn("cpu")
    y = checkpoint(lambda x, w: F.scaled_dot_product_attention(*[(x @ w)[None, None]] * 3).sum() + (x[None] @ w[None]).sum(), x, w,
                   use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    names = [name for name, _, _ in seen]
    y.backward()
    assert names == ["aten.mm.default", "aten._scaled_dot_product_flash_attention_for_cpu.default", "aten.sum.default", "aten.bmm.default",
                     "aten.sum.default", "aten.add.Tensor"]
    assert len(seen) == 6 and not any(again for _, again, _ in seen) and all(given for *_, given in seen)


def test_what_is_kept_may_not_be_written():
    for allowed in (False, True):
        made = []
        x, w, _ = drawn("cpu")

        def part(x, w, made=made):
            made.append(x @ w)
            return made[0].sin().sum()

        y = checkpoint(part, x, w, use_reentrant=False, context_fn=functools.partial(
            create_selective_checkpoint_contexts, [ATEN.mm.default], allow_cache_entry_mutation=allowed))
        with torch.no_grad():
            made[0].detach().zero_()
        if allowed:
            y.backward()
            torch.testing.assert_close(x.grad, torch.ones(4, 4) @ w.detach().t())                  # cos 0 is 1
        else:
            with pytest.raises(RuntimeError, match="mutated"):
                y.backward()


def test_what_is_refused():
    for wrong, error in ((3, TypeError), ([ATEN.mm], ValueError), (["mm"], ValueError)):
        with pytest.raises(error):
            create_selective_checkpoint_contexts(wrong)
    flips = []

    def part(x):
        flips.append(0)
        return (x.exp() if len(flips) > 1 else x.sin()).sum()

    x = torch.ones(2, requires_grad=True)
    y = checkpoint(part, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts([ATEN.mm.default]))
    with pytest.raises(RuntimeError, match="exp in the first run"):
        y.backward()
    y = checkpoint(lambda x: (x * x).sin().sum(), x, use_reentrant=False,
                   context_fn=lambda: create_selective_checkpoint_contexts([ATEN.mul.Tensor]))
    y.backward(retain_graph=True)
    assert x.grad is not None
