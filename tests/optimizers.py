"""Optimizers with their options, and trajectories that they take on either library."""
import numpy as np

SHAPES = [(3, 5), (7,), (), (17, 300), (0, 2)]
METHODS = [
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {}), ("Adam", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}), ("Adam", {"lr": 0.1, "betas": (0.0, 0.5), "maximize": True}),
    ("AdamW", {"lr": 0.05}), ("AdamW", {"lr": 0.05, "weight_decay": 0.2, "amsgrad": True, "maximize": True}),
    ("Adagrad", {}), ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
    ("RMSprop", {}), ("RMSprop", {"momentum": 0.9}), ("RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "maximize": True}),
    ("Adadelta", {}), ("Adadelta", {"lr": 0.3, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {}), ("Adamax", {"weight_decay": 0.1}), ("NAdam", {}), ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}), ("RAdam", {"weight_decay": 0.1, "betas": (0.8, 0.9)}), ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {"t0": 5, "weight_decay": 0.1}), ("Rprop", {"maximize": True}),
    ("Adafactor", {"weight_decay": 0.1}), ("Adafactor", {"d": 2.0, "lr": 1.0}),
    ("Muon", {"lr": 0.1}), ("Muon", {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
]
IDS = [f"{cls} {options}" for cls, options in METHODS]
MULTI = [m for m in METHODS if m[0] not in ("Adafactor", "Muon")]
COUNTING = [m for m in MULTI if m[0] != "SGD"]


def start(module, cls, options, device="cpu", dtype="float32"):
    """Parameters and an optimizer; (parameters, optimizer, function that makes a step)."""
    rng, kind = np.random.default_rng(0), getattr(module, dtype)
    shapes = [s for s in SHAPES if 0 not in s and (len(s) == 2 or cls == "Adafactor")] if cls in ("Muon", "Adafactor") else SHAPES
    params = [module.tensor(rng.standard_normal(s).astype("f4")).to(device).to(kind).requires_grad_() for s in shapes]
    half = len(params) // 2
    optimizer = getattr(module.optim, cls)([{"params": params[:half]}, {"params": params[half:], "lr": 0.02}], **options)

    def step(k):
        for n, p in enumerate(params):
            g = module.tensor(rng.standard_normal(tuple(p.shape)).astype("f4")).to(device).to(kind)
            p.grad = None if k == 3 and n == 1 else g                    # the counts of steps come apart
        optimizer.step()

    return params, optimizer, step


def trajectory(*args, steps=20, **options):
    params, optimizer, step = start(*args, **options)
    for k in range(steps):
        step(k)
    return [p.detach().cpu().double().numpy() for p in params]


def assert_near(got, want, tol):
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)
