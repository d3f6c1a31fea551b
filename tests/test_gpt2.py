"""The benchmark's GPT-2: it learns, its weights cross over to PyTorch and back, and a captured step is the eager one."""
import dataclasses
import types

import numpy as np
import pytest

import tritorch as torch
from bench import gpt2
from bench.models.gpt2 import GPT2, TINY, optimizer_of, train_step

DROPPING = dataclasses.replace(TINY, dropout=0.2)


def made(config=TINY, device="cpu", **options):
    torch.manual_seed(0)
    model = GPT2(config).to(device)
    return model, optimizer_of(model, lr=3e-3, **options)


def tokens(rows=3, seed=0, config=TINY):
    return torch.tensor(np.random.default_rng(seed).integers(0, config.vocabulary, (rows, config.context)))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [None, "cpu"])
def test_learns(fused, kind):
    model, optimizer = made(dataclasses.replace(DROPPING, fused=fused))
    x = tokens()
    losses = [train_step(model, optimizer, x[:, :-1], x[:, 1:], kind).item() for _ in range(25)]
    assert losses[0] == pytest.approx(np.log(TINY.vocabulary), rel=0.05) and losses[-1] < 0.7 * losses[0]


def test_both_losses_are_the_same():
    x = tokens()
    losses = []
    for fused in (False, True):
        model, optimizer = made(dataclasses.replace(TINY, fused=fused))
        losses.append([train_step(model, optimizer, x[:, :-1], x[:, 1:]).item() for _ in range(5)])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_parameters_and_their_groups():
    model, optimizer = made()
    assert [len(g["params"]) for g in optimizer.param_groups] == [2 + 4 * TINY.layers, 2 + 8 * TINY.layers]
    assert model.lm_head.weight is model.transformer.wte.weight
    config = gpt2.twin.load(gpt2.MODEL).Config()
    assert gpt2.parameters(config)[0] == 124_475_904 and gpt2.parameters(TINY)[0] == sum(p.numel() for p in model.parameters())


def test_state_dict_round_trip(tmp_path):
    model, optimizer = made()
    x = tokens()
    train_step(model, optimizer, x[:, :-1], x[:, 1:])
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "gpt2.safetensors")
    state = torch.load(tmp_path / "gpt2.safetensors")
    other, its = made(dataclasses.replace(TINY, dropout=0.0))
    other.load_state_dict(state["model"])
    its.load_state_dict(state["optimizer"])
    both = [train_step(m, o, x[:, :-1], x[:, 1:]).item() for m, o in ((model, optimizer), (other, its))]
    assert both[0] == both[1] and other.lm_head.weight is other.transformer.wte.weight


def test_generates():
    model, _ = made()
    start, draw = tokens(2)[:, :3], torch.Generator().manual_seed(1)
    out = model.generate(start, 20, temperature=0.8, top_k=5, generator=draw)
    assert out.shape == (2, 23) and torch.equal(out[:, :3], start) and int(out.max()) < TINY.vocabulary
    likeliest = model.generate(start, 2, temperature=0)
    assert torch.equal(likeliest[:, 3], model(start)[:, -1].argmax(-1)) and torch.equal(likeliest, model.generate(start, 2, top_k=1))


@pytest.mark.parametrize("fused", [False, True])
def test_captured_step_is_the_eager_one(cuda, fused):
    """In bfloat16, with clipping and two groups of parameters: the same losses and weights to the last bit."""
    curves, weights = [], []
    for captured in (None, "graph", "compile"):
        model, optimizer = made(dataclasses.replace(TINY, fused=fused), cuda, fused=True, capturable=True)
        x = tokens().to(cuda)

        def step(model=model, optimizer=optimizer, x=x):
            return train_step(model, optimizer, x[:, :-1], x[:, 1:], "cuda")

        if captured == "compile":
            step = torch.compile(step)
        losses = [step().item() for _ in range(4)]
        if captured == "graph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = step()
        for _ in range(3):
            if captured == "graph":
                graph.replay()
            losses.append((loss if captured == "graph" else step()).item())
        curves.append(losses)
        weights.append([p.detach().cpu().numpy() for p in model.parameters()])
    assert curves[0] == curves[1] == curves[2]
    for one, *others in zip(*weights):
        for other in others:
            np.testing.assert_array_equal(one, other)


def test_gradients_accumulate_in_place(cuda):
    model, _ = made(device=cuda)
    x = tokens().to(cuda)
    model(x, x).backward()
    addresses, first = [p.grad.data_ptr() for p in model.parameters()], [p.grad.cpu().numpy().copy() for p in model.parameters()]
    model(x, x).backward()
    assert [p.grad.data_ptr() for p in model.parameters()] == addresses
    for p, g in zip(model.parameters(), first):
        np.testing.assert_allclose(p.grad.cpu().numpy(), 2 * g, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ what is counted
def test_a_step_asks_the_driver_for_nothing_and_updates_in_few_launches():
    pytest.importorskip("triton")
    found = gpt2.counted(dataclasses.replace(TINY, fused=True), 2, steps=2)
    assert found["allocations"] == 0 and found["launches"]["optimize.update_kernel"] == 2 and found["seconds"] > 0


def test_the_memory_plan_is_what_is_counted():
    pytest.importorskip("triton")
    config = gpt2.twin.load(gpt2.MODEL).Config(vocabulary=4096, context=256, layers=4, heads=4, width=256)
    for fused in (False, True):
        c = dataclasses.replace(config, fused=fused)
        assert gpt2.counted(c, 8, steps=1)["peak"] == pytest.approx(sum(gpt2.memory_plan(c, 8, fused).values()), rel=0.05)


@pytest.mark.records
@pytest.mark.timeout(900)
def test_its_kernels_compile_for_the_gpu():
    """Those that the full width chooses on an H200, with and without fused operators: all fit, and none spills more than two numbers, but
    for addresses in the attention kernel that keeps two gradients in registers."""
    pytest.importorskip("triton")
    import machine_code

    from tritorch.cuda import compiler

    program, wanted = gpt2.twin.load(gpt2.MODEL), {}
    with gpt2.counting(), compiler.recording() as record:
        for fused in (False, True):
            model = program.GPT2(program.Config(layers=1, fused=fused)).to("cuda")
            x = torch.empty(32, 1024, dtype=torch.int64, device="cuda")
            program.train_step(model, program.optimizer_of(model, fused=True), x, x, "cuda")
        wanted.update(record)
    assert len(wanted) > 40
    for spec, code in zip(wanted.values(), machine_code.used(wanted.values(), 90)):
        spills = 160 if spec.kernel.__name__ == "attention_together_gluon_kernel" else 8
        assert code["spills"] <= spills and code["shared"] <= 232448, (spec, code)


def test_rehearsal_of_the_gpu_bench(cuda, monkeypatch):
    from bench import gpu_gpt2

    for name in ("WARM", "STEPS", "ROUNDS"):
        monkeypatch.setattr(gpu_gpt2, name, 1)
    found = [row for _, measure in gpu_gpt2.work(types.SimpleNamespace(torch=None), True) for row in measure()]
    assert len(found) >= 12 and all(row.ours > 0 or row.unit == "calls" for row in found)


# ------------------------------------------------------------------ beside PyTorch
def test_as_pytorch_from_the_same_weights():
    oracle = pytest.importorskip("torch")
    config, steps = dict(gpt2.SMALL, context=32), 8
    for low, apart in ((False, 1e-5), (True, 3e-3)):                     # bfloat16: 2⁻⁸ of a rounding, over the square root of many
        learners = [gpt2.Learner(library, config, lr=1e-3) for library in ("tritorch", "torch")]
        ours, theirs = gpt2.learn(learners, config, steps, 4, low)
        assert max(abs(a - b) for a, b in zip(ours, theirs)) < apart and ours[-1] < ours[0] - 0.2
    assert list(learners[0].model.state_dict()) == list(learners[1].model.state_dict())
    assert isinstance(learners[1].model, oracle.nn.Module)


def test_every_launch_is_counted_with_its_bytes_and_operations():
    pytest.importorskip("triton")
    from bench import launches

    with launches.accounting() as account:
        x, y = [torch.empty(1024, 1024, device="cuda") for _ in range(2)]
        account.launches.clear()
        x + y[:1]
        a, b = [torch.empty(32768, n, dtype=torch.bfloat16, device="cuda") for n in (768, 3072)]
        a.mT @ b
        q = torch.empty(2, 4, 256, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    add, product = account.launches[:2]
    assert (add.operator, add.nbytes, add.flops) == ("add", (2 << 22) + 4096, 0)
    assert product.operator == "matmul" and product.flops == 2 * 768 * 3072 * 32768 and product.busy == 1
    scores = 2 * 4 * 256 * 256 * 64                                      # two operations an element, half of them masked
    forward, backward = [sum(x.flops for x in account.launches if x.rate == f"attention {way}") for way in ("forward", "backward")]
    assert forward == 2 * scores and backward in (5 * scores, 7 * scores)
    table = launches.table(account.launches, gpt2.RATES)
    assert f"| all launches | {len(account.launches)} |" in table and "matmul_gluon_kernel" in table


def test_launches_of_steps():
    """A captured step launches fewer kernels than an eager one, and moves fewer bytes beside its products."""
    pytest.importorskip("triton")
    config = dataclasses.replace(TINY, width=64, context=64)
    (plain, most), (graph, _), (fastest, least) = [gpt2.launched(config, 4, options) for options in gpt2.STEPS_OF.values()]
    moved = [sum(x.nbytes for x in found if not x.flops) for found in (plain, graph, fastest)]
    assert len(plain) > len(graph) > len(fastest) > 50 and moved[0] > moved[1] > moved[2] and most > least > 0
    assert all(x.seconds(gpt2.RATES) > 0 and x.in_waves(gpt2.RATES) >= x.seconds(gpt2.RATES) for x in plain)
