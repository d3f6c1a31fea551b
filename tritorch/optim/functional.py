"""Steps of optimizers as functions of lists, under the names of torch.optim.adam.adam and its like. Signatures are longer than eight
parameters, as PyTorch's are.

Parameters, what is remembered of them, and `state_steps`, float32 scalars, are written in place; `foreach` and `has_complex` change
nothing. With `grad_scale` gradients are divided by it first, and where `found_inf`, a tensor, is not 0 nothing is done.
"""
from tritorch.autograd.modes import no_grad
from tritorch.errors import check
from tritorch.optim.adagrad import Adagrad, RMSprop
from tritorch.optim.adam import Adam
from tritorch.optim.sgd import SGD
from tritorch.tensor import Tensor

__all__ = ["adagrad", "adam", "adamw", "rmsprop", "sgd"]


@no_grad()
def _step(kind, params, grads, columns, options, grad_scale=None, found_inf=None, differentiable=False):
    """A step of an optimizer that remembers these columns, {name: list}."""
    name = kind.__name__.lower()
    check(not differentiable, name, "differentiable=False", differentiable, use=f"optim.{kind.__name__}(..., differentiable=True)")
    counts = [t for t in columns.get("step", ()) if not isinstance(t, Tensor)]
    check(not counts, name, "state_steps to be a list of tensors of one element", *counts)
    if found_inf is not None and found_inf.item():
        return []
    seen = [p.detach() for p in params]
    optimizer = kind(seen, **options)
    for k, (p, g) in enumerate(zip(seen, grads)):
        p.grad = g if grad_scale is None else g / grad_scale
        optimizer.state[p].update({column: values[k] for column, values in columns.items() if values and values[k] is not None})
    optimizer.step()
    return [optimizer.state[p] for p in seen]


def _for_parameters(columns, params):
    """Columns that have a tensor for each parameter; others, which an option leaves out, are empty."""
    return {name: values for name, values in columns.items() if len(values) == len(params)}


def adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, foreach=None, capturable=False, differentiable=False,
         fused=None, grad_scale=None, found_inf=None, has_complex=False, decoupled_weight_decay=False, *, amsgrad, beta1, beta2, lr,
         weight_decay, eps, maximize):
    """A step of `optim.Adam`.

    >>> import tritorch as torch; from tritorch.optim.adam import adam
    >>> w, m, v, t = torch.tensor([1.0, -2.0]), torch.zeros(2), torch.zeros(2), torch.tensor(0.0)
    >>> adam([w], [w * 2], [m], [v], [], [t], amsgrad=False, beta1=0.9, beta2=0.999, lr=0.1, weight_decay=0, eps=1e-8, maximize=False)
    >>> w, t
    (tensor([ 0.9000, -1.9000]), tensor(1.))
    """
    columns = {"step": state_steps, "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs, "max_exp_avg_sq": max_exp_avg_sqs if amsgrad else []}
    options = dict(lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize, fused=fused,
                   capturable=capturable, decoupled_weight_decay=decoupled_weight_decay)
    _step(Adam, params, grads, _for_parameters(columns, params), options, grad_scale, found_inf, differentiable)


def adamw(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, foreach=None, capturable=False, differentiable=False,
          fused=None, grad_scale=None, found_inf=None, has_complex=False, *, amsgrad, beta1, beta2, lr, weight_decay, eps, maximize):
    """A step of `optim.AdamW`.

    >>> import tritorch as torch; from tritorch.optim.adamw import adamw
    >>> w, m, v, t = torch.tensor([1.0]), torch.zeros(1), torch.zeros(1), torch.tensor(0.0)
    >>> adamw([w], [w * 0], [m], [v], [], [t], amsgrad=False, beta1=0.9, beta2=0.999, lr=0.1, weight_decay=0.5, eps=1e-8, maximize=False)
    >>> w
    tensor([0.9500])
    """
    adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, foreach, capturable, differentiable, fused, grad_scale,
         found_inf, has_complex, True, amsgrad=amsgrad, beta1=beta1, beta2=beta2, lr=lr, weight_decay=weight_decay, eps=eps,
         maximize=maximize)


def sgd(params, d_p_list, momentum_buffer_list, has_sparse_grad=False, foreach=None, fused=None, grad_scale=None, found_inf=None, *,
        weight_decay, momentum, lr, dampening, nesterov, maximize):
    """A step of `optim.SGD`. Where `momentum_buffer_list` has None the buffer is made, and put there.

    >>> import tritorch as torch; from tritorch.optim.sgd import sgd
    >>> w, buffers = torch.tensor([1.0, 2.0]), [None]
    >>> sgd([w], [w * 2], buffers, weight_decay=0, momentum=0.9, lr=0.1, dampening=0, nesterov=False, maximize=False)
    >>> w, buffers
    (tensor([0.8000, 1.6000]), [tensor([2., 4.])])
    """
    options = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov, maximize=maximize,
                   fused=fused)
    columns = {"momentum_buffer": momentum_buffer_list} if momentum else {}
    for k, state in enumerate(_step(SGD, params, d_p_list, _for_parameters(columns, params), options, grad_scale, found_inf)):
        if momentum:
            momentum_buffer_list[k] = state["momentum_buffer"]


def rmsprop(params, grads, square_avgs, grad_avgs, momentum_buffer_list, state_steps, foreach=None, maximize=False, differentiable=False,
            capturable=False, has_complex=False, *, lr, alpha, eps, weight_decay, momentum, centered):
    """A step of `optim.RMSprop`.

    >>> import tritorch as torch; from tritorch.optim.rmsprop import rmsprop
    >>> w, v, t = torch.tensor([1.0]), torch.zeros(1), torch.tensor(0.0)
    >>> rmsprop([w], [w * 2], [v], [], [], [t], lr=0.1, alpha=0.75, eps=0, weight_decay=0, momentum=0, centered=False)
    >>> w, v
    (tensor([0.8000]), tensor([1.]))
    """
    columns = {"step": state_steps, "square_avg": square_avgs, "grad_avg": grad_avgs if centered else [],
               "momentum_buffer": momentum_buffer_list if momentum else []}
    options = dict(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered, capturable=capturable,
                   maximize=maximize)
    _step(RMSprop, params, grads, _for_parameters(columns, params), options, differentiable=differentiable)


def adagrad(params, grads, state_sums, state_steps, fused=None, grad_scale=None, found_inf=None, has_sparse_grad=False, foreach=None,
            differentiable=False, has_complex=False, *, lr, weight_decay, lr_decay, eps, maximize):
    """A step of `optim.Adagrad`.

    >>> import tritorch as torch; from tritorch.optim.adagrad import adagrad
    >>> w, s, t = torch.tensor([1.0]), torch.zeros(1), torch.tensor(0.0)
    >>> adagrad([w], [w * 2], [s], [t], lr=0.1, weight_decay=0, lr_decay=0, eps=0, maximize=False)
    >>> w, s
    (tensor([0.9000]), tensor([4.]))
    """
    options = dict(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps, maximize=maximize, fused=fused)
    _step(Adagrad, params, grads, {"step": state_steps, "sum": state_sums}, options, grad_scale, found_inf, differentiable)
