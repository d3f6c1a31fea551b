"""Steps with `differentiable=True`: in public operators and with gradients recorded, so that they go through the step to the gradients,
parameters, remembered tensors and options (tensors, where a gradient of theirs is wanted) that it was made of.

A rule is `fn(p, g, s, t, group)`: it returns the parameter after step t and puts what is to be remembered into the dict `s`. Nothing is
overwritten but the parameter. tritorch/ops/update_rules.py has the same, written in place, under the same names.
"""
from tritorch.tensor import Tensor


def _number(value):
    return value.reshape(()) if isinstance(value, Tensor) else value


def _decayed(p, g, group):
    """Parameter and gradient with the decay of weights."""
    decay = _number(group["weight_decay"])
    if not isinstance(decay, Tensor) and not decay:
        return p, g
    return (p * (1 - _number(group["lr"]) * decay), g) if group.get("decoupled_weight_decay") else (p, g + decay * p)


def _moments(g, s, group):
    """The betas, and both moments with the gradient in them."""
    beta1, beta2 = map(_number, group["betas"])
    m = s["exp_avg"] = s["exp_avg"] + (g - s["exp_avg"]) * (1 - beta1)
    v = s["exp_avg_sq"] = s["exp_avg_sq"] * beta2 + g * g * (1 - beta2)
    return beta1, beta2, m, v


def sgd(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    momentum = group["momentum"]
    if momentum:
        old = s.get("momentum_buffer")
        b = s["momentum_buffer"] = g.clone() if old is None else old * momentum + g * (1 - group["dampening"])
        g = g + b * momentum if group["nesterov"] else b
    return p - g * _number(group["lr"])


def adam(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    beta1, beta2, m, v = _moments(g, s, group)
    if group["amsgrad"]:
        v = s["max_exp_avg_sq"] = s["max_exp_avg_sq"].maximum(v)
    return p - m / (v.sqrt() / (1 - beta2**t) ** 0.5 + group["eps"]) * (_number(group["lr"]) / (1 - beta1**t))


def adamax(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    beta1, beta2 = map(_number, group["betas"])
    m = s["exp_avg"] = s["exp_avg"] + (g - s["exp_avg"]) * (1 - beta1)
    u = s["exp_inf"] = (s["exp_inf"] * beta2).maximum(g.abs() + group["eps"])
    return p - m / u * (_number(group["lr"]) / (1 - beta1**t))


def nadam(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    beta1, beta2, m, v = _moments(g, s, group)
    mu, following = [beta1 * (1 - 0.5 * 0.96 ** (k * group["momentum_decay"])) for k in (t, t + 1)]
    product = s["mu_product"].item() * mu
    s["mu_product"] = s["mu_product"].new_full((), float(product))
    step = g * ((1 - mu) / (1 - product)) + m * (following / (1 - product * following))
    return p - step / ((v / (1 - beta2**t)).sqrt() + group["eps"]) * _number(group["lr"])


def radam(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    beta1, beta2, m, v = _moments(g, s, group)
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)                 # of the average that v is, in steps
    step = m * (_number(group["lr"]) / (1 - beta1**t))
    if length > 5:
        damped = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
        step = step * (damped * (1 - beta2**t) ** 0.5) / (v.sqrt() + group["eps"])
    return p - step


def adagrad(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    total = s["sum"] = s["sum"] + g * g
    return p - g / (total.sqrt() + group["eps"]) * (_number(group["lr"]) / (1 + (t - 1) * group["lr_decay"]))


def rmsprop(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    alpha, momentum = group["alpha"], group["momentum"]
    square = s["square_avg"] = s["square_avg"] * alpha + g * g * (1 - alpha)
    if group["centered"]:
        mean = s["grad_avg"] = s["grad_avg"] + (g - s["grad_avg"]) * (1 - alpha)
        square = square - mean * mean
    g = g / (square.sqrt() + group["eps"])
    if momentum > 0:
        g = s["momentum_buffer"] = s["momentum_buffer"] * momentum + g
    return p - g * _number(group["lr"])


def adadelta(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    rho, eps = group["rho"], group["eps"]
    square = s["square_avg"] = s["square_avg"] * rho + g * g * (1 - rho)
    move = (s["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * g
    s["acc_delta"] = s["acc_delta"] * rho + move * move * (1 - rho)
    return p - move * _number(group["lr"])


def asgd(p, g, s, t, group):
    p, g = _decayed(p, g, group)
    eta, mu, lr, lambd = s["eta"].item(), s["mu"].item(), float(group["lr"]), group["lambd"]
    p = p * (1 - lambd * eta) - g * eta
    s["ax"] = p.clone() if mu == 1 else s["ax"] + (p - s["ax"]) * mu
    s["eta"] = s["eta"].new_full((), lr / (1 + lambd * lr * t) ** group["alpha"])
    s["mu"] = s["mu"].new_full((), 1 / max(1.0, t - group["t0"]))
    return p


def rprop(p, g, s, t, group):
    shrink, grow = group["etas"]
    signs = (g * s["prev"]).sign().detach()
    factors = signs * ((grow - shrink) / 2) + signs * signs * ((grow + shrink) / 2 - 1) + 1                # shrink, 1 or grow
    size = s["step_size"] = (s["step_size"] * factors).clamp(*group["step_sizes"])
    g = s["prev"] = g.masked_fill(signs < 0, 0)
    return p - g.sign() * size
