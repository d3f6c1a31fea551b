"""Wrong input to what trains and what transforms functions: PyTorch's exception, one sentence, and nothing half done."""
import numpy as np
import pytest

import tritorch
from tests.both import pytorch

P = "P = [lib.ones(2, 3, requires_grad=True), lib.ones(4, requires_grad=True)]\nfor p in P: p.grad = lib.full_like(p, 0.5)\n"
O = P + "o = lib.optim.SGD([{'params': P[:1]}, {'params': P[1:], 'lr': 0.5}], lr=0.1, momentum=0.9)\nL = lib.optim.lr_scheduler\n"
D = "D = lib.utils.data\n"
X = "x = lib.arange(1.0, 4.0)\ndef f(x): return (x * x).sum()\n"
WRONG = [                                                                # (set up, call, exception, part of the sentence)
    # optimizers: options
    *[(P, f"lib.optim.{name}(P, {option}={value})", TypeError, f"expected a number as {option}, got ") for name, option in (
        ("SGD", "lr"), ("SGD", "momentum"), ("Adam", "eps"), ("AdamW", "weight_decay"), ("NAdam", "momentum_decay"), ("Adadelta", "rho"),
        ("Adagrad", "lr_decay"), ("RMSprop", "alpha"), ("Adafactor", "d"), ("LBFGS", "lr")) for value in ("None", "'a'", "[1.0]", "{}")],
    *[(P, f"lib.optim.{name}(P, betas={value}).step()", kind, "two numbers as betas") for name in ("Adam", "Adamax", "NAdam", "RAdam")
      for value, kind in (("None", TypeError), ("0.9", TypeError), ("(0.9, 0.99, 0.9)", ValueError))],
    (P, "lib.optim.Adam(P, betas=('a', 0.9))", TypeError, "expected a number as betas[0], got 'a'"),
    (P, "lib.optim.Rprop(P, etas=None)", TypeError, "two numbers as etas"),
    # optimizers: parameters
    (P, "lib.optim.SGD(None)", TypeError, "expected an iterable of tensors or dicts, got NoneType"),
    (P, "lib.optim.SGD([{'lr': 0.1}])", KeyError, "expected 'params' in a parameter group"),
    (P, "lib.optim.SGD([{'params': None}])", TypeError, "expected an iterable of tensors as params, got NoneType"),
    (P, "lib.optim.SGD(P).step(3)", TypeError, "expected a function as closure, got int"),
    (P, "lib.optim.LBFGS(P).step(None)", TypeError, "expected a function as closure, got NoneType"),
    # optimizers: saved state
    *[(P + "o = lib.optim.Adam(P)\ng = o.state_dict()['param_groups']\n", f"o.load_state_dict({saved})", kind, words)
      for saved, kind, words in (
        ("None", AttributeError, "expected a dict, got NoneType"), ("{}", KeyError, "in a state dict, got the keys []"),
        ("{'state': {}, 'param_groups': 3}", TypeError, "a list of param_groups, got int"),
        ("{'state': {}, 'param_groups': [{}]}", KeyError, "'params' in a parameter group"),
        ("{'state': None, 'param_groups': g}", AttributeError, "a dict as state, got NoneType"))],
    # schedules
    (O, "L.LambdaLR(None, lambda e: 1)", AttributeError, "expected an Optimizer, got NoneType"),
    (O, "L.StepLR(3, 1)", TypeError, "expected an Optimizer, got int"),
    (O, "L.LambdaLR(o, 3)", TypeError, "expected functions as lr_lambda, got int"),
    (O, "L.MultiplicativeLR(o, [lambda e: 1, None])", TypeError, "expected functions as lr_lambda, got NoneType"),
    (O, "L.ExponentialLR(o, None).step()", TypeError, "expected a number as gamma, got None"),
    (O, "L.CosineAnnealingLR(o, 'a').step()", TypeError, "expected a number as T_max, got 'a'"),
    (O, "L.CyclicLR(o, 0.1, 0.2, scale_fn=3)", TypeError, "expected a function as scale_fn, got int"),
    (O, "L.OneCycleLR(o, 0.1, 10, div_factor=None)", TypeError, "expected a number as div_factor"),
    (O, "L.SequentialLR(o, None, [1])", TypeError, "expected a list of schedulers, got NoneType"),
    (O, "L.SequentialLR(o, [L.StepLR(o, 1), L.StepLR(o, 1)], 1)", TypeError, "expected a list of milestones, got int"),
    (O, "L.ReduceLROnPlateau(o).step(None)", TypeError, "expected a number as metrics, got None"),
    (O, "L.LambdaLR(o, lambda e: 1).load_state_dict({'last_epoch': 3})", KeyError, "'lr_lambdas' in a state dict"),
    # transformations: what was taken, mostly with a wrong result
    *[(X, f"lib.func.{name}(f, argnums={argnums})(x)", RuntimeError, words) for name in ("grad", "jacrev", "jacfwd", "hessian")
      for argnums, words in (("()", "an int or ints as argnums"), ("{}", "an int or ints as argnums"), ("(0, 0)", "different arguments"))],
    (X, "lib.func.vmap(f, randomness='a')(x.view(1, 3))", RuntimeError, "randomness 'error', 'different' or 'same', got 'a'"),
    (X, "lib.func.vmap(lambda x: x * 2, out_dims=None)(x)", ValueError, "the same for all samples where out_dims is None"),
    (X, "lib.func.vmap(f, in_dims=[0])(x)", ValueError, "in_dims as an int or a tuple, got [0]"),
    (X, "lib.func.vmap(lambda a, b: a * b)(x, 3)", ValueError, "in_dims that the arguments have, got 0 and int"),
    (X, "lib.func.vjp(lambda x: x * x, x)[1](x[:2])", RuntimeError, "a cotangent of shape (3,), got (2,)"),
    (X, "lib.func.functional_call(lib.nn.ReLU(), [{'a': x}, {'a': x}], x)", ValueError, "each name in one of the dicts"),
    (X, "lib.func.functional_call(lib.nn.Linear(3, 1), {'bias': 3}, x)", TypeError, "int as bias"),
    (X, "lib.func.stack_module_state([lib.nn.Linear(1, 1), lib.nn.Linear(1, 1).eval()])", RuntimeError, "models that all train"),
    # autograd
    (X, "lib.autograd.grad(f(x.requires_grad_()), [])", RuntimeError, "expected one or more inputs, got none"),
    *[(X, f"lib.autograd.functional.{name}(f, [x])", TypeError, "inputs as a tensor or a tuple of tensors, got list")
      for name in ("jacobian", "hessian", "vjp", "jvp", "hvp", "vhp")],
    (X, "lib.autograd.functional.jacobian(lambda x: [x], x)", TypeError, "result as a tensor or a tuple of tensors, got list"),
    (X, "lib.set_grad_enabled(None)", TypeError, "True or False as mode, got None"),
    (X, "x.requires_grad_('a')", TypeError, "True or False as requires_grad, got 'a'"),
    (X, "setattr(x, 'requires_grad', 3)", RuntimeError, "True or False as value, got 3"),
    (X, "setattr(x.requires_grad_(), 'data', x.long())", RuntimeError, "a dtype that has gradients"),
    # distributions
    ("", "lib.distributions.Normal([0.0], 1.0)", ValueError, "expected tensors and numbers, got list"),
    *[("", f"lib.distributions.{name}.{method}(1.5)", ValueError, "expected a tensor, got float") for name, method in (
        ("Normal(0.0, 1.0)", "log_prob"), ("Normal(0.0, 1.0)", "cdf"), ("Laplace(0.0, 1.0)", "log_prob"), ("Exponential(1.0)", "cdf"),
        ("Bernoulli(0.5)", "log_prob"))],
    ("", "lib.distributions.Uniform(0.0, 1.0).cdf(lib.tensor(2.0))", ValueError, "a value within the support Interval("),
    ("", "lib.distributions.Laplace(0.0, 1.0).log_prob(lib.tensor(float('nan')))", ValueError, "a value within the support Real()"),
    # data
    (D, "list(D.DataLoader([1, 2], timeout=5))", AssertionError, "timeout 0 without workers, got 5"),
    (D, "D.DataLoader([1, 2], num_workers='a')", TypeError, "a number as num_workers, got 'a'"),
    (D, "list(D.DataLoader([1, 2], collate_fn=0))", TypeError, "a function as collate_fn, got int"),
    (D, "D.TensorDataset(np.ones(2))", TypeError, "expected tensors, got ndarray"),
    (D, "list(D.DataLoader(D.TensorDataset(lib.ones(2)), batch_sampler=[0, 1]))", TypeError, "batches as lists of indices, got int"),
    (D, "D.random_split([1, 2], 2)", TypeError, "a list of lengths, got int"),
    (D, "D.random_split([1, 2], [1, 'a'])", TypeError, "a number as lengths[1], got 'a'"),
    # amp
    (X, "lib.autocast('cpu', 'bfloat16').__enter__()", TypeError, "expected a tritorch.dtype, got 'bfloat16'"),
    (X, "lib.set_autocast_dtype('cpu', None)", TypeError, "expected a tritorch.dtype, got None"),
    (X, "lib.amp.GradScaler('cpu', init_scale=None).scale(x)", TypeError, "a number as init_scale, got None"),
    (X, "lib.amp.GradScaler('cpu').load_state_dict({'scale': 1.0})", KeyError, "'_growth_tracker' in a state dict"),
    (X, "lib.amp.custom_fwd(device_type=None)", ValueError, "a string as device_type, got NoneType"),
]


def run(setup, call, lib):
    space = {"lib": lib, "np": np}
    exec(setup, space)
    return space, lambda: eval(call, space)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("setup, call, kind, words", WRONG)
def test_wrong_input_is_refused(setup, call, kind, words):
    if pytorch is not None:
        with pytest.raises(kind):
            run(setup, call, pytorch)[1]()
    with pytest.raises(kind) as error:
        run(setup, call, tritorch)[1]()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


HALF = [                                                                 # (set up, a call that raises an error, what it leaves alone)
    *[(O, f"L.{made}", "[[(k, v) for k, v in g.items() if k != 'params'] for g in o.param_groups]") for made in (
        "LambdaLR(o, [lambda e: 0.5, lambda e: 1 / 0])", "CyclicLR(o, 0.1, 0.2, scale_fn=lambda x: 1 / 0)",
        "LambdaLR(o, lambda e: 'a' + 1)", "OneCycleLR(o, 0.3, 10, base_momentum=None)")],
    (O + "s = L.LambdaLR(o, lambda e: 1 / (1 - e))\n", "s.step()", "[s.last_epoch, s._step_count, s.get_last_lr()]"),
    (O + "s = L.LambdaLR(o, lambda e: 1)\n", "s.load_state_dict({'last_epoch': 3})", "s.last_epoch"),
    *[(P + f"o = lib.optim.{name}([{{'params': P[:1]}}, {{'params': P[1:]}}], lr=0.1)\no.step()\no.param_groups[1]['{option}'] = 'a'\n",
       "o.step()", "[p.tolist() for p in P] + [o.state[p]['step'].item() for p in P if 'step' in o.state[p]]")
      for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adafactor", "ASGD") for option in ("lr", "weight_decay")],
    (P + "o = lib.optim.Adam(P)\no.step()\nd = o.state_dict()\nd['state'][1] = 3\nd['param_groups'][0]['lr'] = 7\n",
     "o.load_state_dict(d)", "[o.param_groups[0]['lr'], o.state[P[0]]['step'].item()]"),
]


@pytest.mark.parametrize("setup, call, left", HALF)
def test_nothing_is_half_done(setup, call, left):
    space, go = run(setup, call, tritorch)
    before = repr(eval(left, space))
    with pytest.raises((TypeError, ValueError, KeyError, ZeroDivisionError, RuntimeError)):
        go()
    assert repr(eval(left, space)) == before
