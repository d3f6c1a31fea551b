"""Calling a module with other tensors in the place of its own."""
from tritorch.errors import check
from tritorch.ops.shaping import stack
from tritorch.tensor import Tensor
from tritorch.utils._pytree import tree_map


def functional_call(module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """Call a module with other tensors in the place of its parameters and buffers, by name.

    >>> import tritorch as torch
    >>> layer = torch.nn.Linear(2, 1)
    >>> torch.func.functional_call(layer, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, torch.tensor([1.0, 2.0])).item()
    3.0
    """
    dicts = parameter_and_buffer_dicts if isinstance(parameter_and_buffer_dicts, (tuple, list)) else (parameter_and_buffer_dicts,)
    for d in dicts:
        check(isinstance(d, dict), "functional_call", "a dict of tensors, or several", type(d).__name__, error=ValueError)
    given = {name: t for d in dicts for name, t in d.items()}
    check(len(given) == sum(map(len, dicts)), "functional_call", "each name in one of the dicts", "some in several", error=ValueError)
    for name, t in given.items():
        check(t is None or isinstance(t, Tensor), "functional_call", "tensors as parameters and buffers", f"{type(t).__name__} as {name}",
              error=TypeError)
    check(kwargs is None or isinstance(kwargs, dict), "functional_call", "a dict as kwargs", type(kwargs).__name__, error=TypeError)
    owners = {}
    for prefix, part in module.named_modules():
        for table in (part._parameters, part._buffers):
            for name in table:
                owners[f"{prefix}.{name}" if prefix else name] = table, name
    unknown = sorted(given.keys() - owners.keys())
    check(not unknown or not strict, "functional_call", "names of the module's parameters and buffers", ", ".join(unknown))
    shared = {}
    if tie_weights:                                                      # a tensor under several names is replaced under all of them
        for name, (table, key) in owners.items():
            if name in given and table[key] is not None:
                shared[id(table[key])] = given[name]
    missing = [name for name, (table, key) in owners.items()
               if table[key] is not None and name not in given and id(table[key]) not in shared]
    check(not missing or not strict, "functional_call", "tensors for all parameters and buffers with strict=True", f"none for {missing}")
    before = [(table, key, table[key]) for table, key in owners.values()]
    try:
        for name, (table, key) in owners.items():
            if name in given or id(table[key]) in shared:
                table[key] = given.get(name, shared.get(id(table[key])))
        args = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*args, **(kwargs or {}))
    finally:
        for table, key, value in before:
            table[key] = value


def stack_module_state(models):
    """(parameters, buffers) of modules of one kind, by name, those of all models stacked: for `vmap` over an ensemble.

    >>> import tritorch as torch
    >>> parameters, buffers = torch.func.stack_module_state([torch.nn.Linear(2, 3) for _ in range(4)])
    >>> parameters["weight"].shape
    tritorch.Size([4, 3, 2])
    """
    models = list(models)
    check(len(models) > 0, "stack_module_state", "at least one model", "none")
    check(all(type(m) is type(models[0]) for m in models), "stack_module_state", "models of one class", [type(m).__name__ for m in models])

    check(len({m.training for m in models}) == 1, "stack_module_state", "models that all train or all do not", "some of both")

    def stacked(*tensors):
        out = stack([t.detach() if isinstance(t, Tensor) else t for t in tensors])
        return out.requires_grad_(tensors[0].requires_grad)

    tables = [[dict(getattr(m, kind)()) for m in models] for kind in ("named_parameters", "named_buffers")]
    return tuple([tree_map(stacked, *table) for table in tables])
