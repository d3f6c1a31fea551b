"""DistributedDataParallel: one model in several processes, which train it together."""
import contextlib
import warnings
from dataclasses import fields, is_dataclass

from tritorch import distributed as dist
from tritorch.autograd.modes import is_grad_enabled
from tritorch.autograd.places import stacklevel
from tritorch.device import device as Device
from tritorch.distributed.algorithms.join import Join, Joinable
from tritorch.errors import check
from tritorch.nn.module import Module
from tritorch.nn.parallel.joined import JoinedRank, rank_that_works, tell_whether_reduced
from tritorch.nn.parallel.reducer import NAME, Reducer
from tritorch.nn.parallel.synchronize import broadcast, verify
from tritorch.nn.parameter import UninitializedParameter
from tritorch.profiler.recorder import record_function
from tritorch.tensor import Tensor

MIB = 1 << 20


class DistributedDataParallel(Module, Joinable):
    """`module` in each process of a group, with the same parameters in all: every process computes with inputs of its own, and backward
    leaves the average over all processes in the parameters' `.grad`, so that equal optimizers keep the parameters equal.

    The constructor verifies that all ranks have the same parameters and takes over those (and the buffers) of rank 0 (`init_sync`);
    `forward` takes over the buffers of rank 0 (`forward_sync_buffers`, or `broadcast_buffers`, which the constructor heeds too). Gradients
    travel in buckets of 25 MiB, the first of 1 MiB, or of `bucket_cap_mb`, or of the sizes in `bucket_cap_mb_list`, from the last
    parameter to the first, while backward goes on; what becomes of them a hook may say (`register_comm_hook`).

    * A forward pass with gradients calls for one reduction, by the backward passes that follow. If they leave a parameter without a
      gradient, the next forward pass raises RuntimeError. A backward pass after the reduction only adds this rank's gradients, as in
      PyTorch.
    * `find_unused_parameters`: parameters that a backward pass does not come to are not waited for. One that no rank used keeps the
      gradient it had.
    * `static_graph`: all passes are like the first. Parameters may be unused, or used in several reentrant checkpoints.
    * `gradient_as_bucket_view`: `.grad` is a part of the bucket, which saves a copy of all gradients.
    * `skip_all_reduce_unused_params`: buckets without a used parameter do not travel; the same parameters have to be unused in all ranks.
    * Gradients are copied into a bucket at once when it is full, with or without `batched_grad_copy`. `create_graph=True` is refused
      (gradients of gradients do not come from other ranks); `autograd.grad` reduces nothing.
    * `compile(module)` inside of this is replayed; a compiled step with backward in it runs eagerly, and says so, unless it is alone.

    Parameters must not be added or exchanged later. Keys of the state dict begin with "module.". `device_ids` ([device], for modules on
    one GPU) is where `forward` moves its arguments; a `device_mesh` of one dim stands for its group. Raises ValueError before
    `init_process_group`, for several or impossible `device_ids` and for parameters on devices of several types, RuntimeError where no
    parameter requires a gradient or ranks differ, NotImplementedError for `mixed_precision` (autocast is there) and
    `delay_all_reduce_named_params`.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1)
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    >>> model(torch.ones(4, 3)).sum().backward()
    >>> model.module.bias.grad, list(model.state_dict())
    (tensor([4., 4.]), ['module.weight', 'module.bias'])
    >>> dist.destroy_process_group()
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=None, init_sync=True, process_group=None,
                 bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False, gradient_as_bucket_view=False,
                 static_graph=False, delay_all_reduce_named_params=None, param_to_hook_all_reduce=None, mixed_precision=None,
                 device_mesh=None, skip_all_reduce_unused_params=False, bucket_cap_mb_list=None, batched_grad_copy=False,
                 forward_sync_buffers=None):
        """Long: the arguments of PyTorch's."""
        super().__init__()
        Joinable.__init__(self)
        check(delay_all_reduce_named_params is None and param_to_hook_all_reduce is None, NAME, "no parameters whose reduction is delayed",
              "some", error=NotImplementedError)
        check(mixed_precision is None, NAME, "mixed_precision=None", "another", use="autocast", error=NotImplementedError)
        check(process_group is None or device_mesh is None, NAME, "a process_group or a device_mesh", "both")
        check(device_mesh is None or device_mesh.ndim == 1, NAME, "a device_mesh of one dim", device_mesh)
        if check_reduction:
            warnings.warn(f"{NAME}: check_reduction is deprecated and changes nothing", FutureWarning, stacklevel=stacklevel())
        group = process_group if device_mesh is None else device_mesh.get_group()
        self.process_group = default_group() if group is None else group
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self._module_parameters = [p for name, p in module.named_parameters() if name not in self.parameters_to_ignore]
        self.device_type, self.device_ids, self.output_device = devices(self._module_parameters, device_ids, output_device)
        self.module, self.device, self.dim = module, self._module_parameters[0].device, dim
        if broadcast_buffers is not None:
            warnings.warn(f"{NAME}: broadcast_buffers is deprecated; use forward_sync_buffers, with which the constructor takes over the "
                          "buffers of rank 0 in any case", FutureWarning, stacklevel=stacklevel())
        given = broadcast_buffers if forward_sync_buffers is None else forward_sync_buffers
        self.forward_sync_buffers = given is None or given
        self.find_unused_parameters, self.gradient_as_bucket_view = find_unused_parameters, gradient_as_bucket_view
        self.skip_all_reduce_unused_params, self.batched_grad_copy = skip_all_reduce_unused_params, batched_grad_copy
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.static_graph, self._divide_by_initial_world_size = static_graph, True
        self.bucket_bytes_cap_list = [int(mb * MIB) for mb in bucket_cap_mb_list or ()]
        self.bucket_bytes_cap_default = bucket_cap_mb is None and not bucket_cap_mb_list
        self.bucket_bytes_cap = max(self.bucket_bytes_cap_list, default=int((25 if bucket_cap_mb is None else bucket_cap_mb) * MIB))
        if init_sync and self.process_group.size() > 1:
            verify(NAME, self._trained(), self.process_group)
            self._take_over(0, forward_sync_buffers is not None or self.forward_sync_buffers)
        self._make_reducer()
        if static_graph and find_unused_parameters:
            warnings.warn(f"{NAME}: find_unused_parameters changes nothing beside static_graph, which finds them", stacklevel=stacklevel())

    @property
    def broadcast_buffers(self):
        """The older name of `forward_sync_buffers`."""
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value):
        self.forward_sync_buffers = value

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module, params_and_buffers_to_ignore):
        """Names of parameters and buffers of a module that are left alone when it is wrapped."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore

    def _trained(self):
        """The parameters whose gradients are reduced, with their names."""
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad and name not in self.parameters_to_ignore]

    def _make_reducer(self):
        limits = self.bucket_bytes_cap_list or [self.bucket_bytes_cap]
        self.reducer = Reducer(self._trained(), self.process_group, [MIB, *limits] if self.bucket_bytes_cap_default else limits,
                               self.find_unused_parameters, self.gradient_as_bucket_view, self.static_graph,
                               self.skip_all_reduce_unused_params)

    def _set_static_graph(self):
        """As if the constructor had got `static_graph=True`."""
        if not self.static_graph:
            self.static_graph, hook = True, self.reducer.hook
            self._make_reducer()
            self.reducer.hook = hook

    # -------------------------------------------------------------- copies
    def __getstate__(self):
        check(dist.is_initialized() and self.process_group == dist.group.WORLD, f"{NAME}.__getstate__",
              "the default process group (others cannot be pickled or copied)", "another")
        return {name: value for name, value in super().__getstate__().items() if name not in ("process_group", "reducer")}

    def __setstate__(self, state):
        self.__dict__["process_group"] = default_group()
        super().__setstate__(state)
        self._make_reducer()

    # -------------------------------------------------------------- what all ranks have alike
    def _buffers_alike(self):
        """The buffers that are to be those of one rank: asked for anew, for a module may exchange them."""
        return [b for name, b in self.module.named_buffers() if name not in self.parameters_to_ignore]

    def _take_over(self, source, buffers):
        """Parameters, and buffers if so, become those of rank `source`."""
        broadcast([*self._module_parameters, *(self._buffers_alike() if buffers else ())], self.process_group, source)

    def will_sync_module_buffers(self):
        """Whether the next forward pass takes over the buffers of another rank."""
        return self.require_forward_param_sync and self.forward_sync_buffers and bool(self._buffers_alike())

    def _sync_buffers(self, working=True):
        """The buffers become those of rank 0, or, where ranks may have joined, of the last one that `working` says works."""
        source = rank_that_works(self, working) if self._join_config.enable else 0
        broadcast(self._buffers_alike(), self.process_group, source)

    # -------------------------------------------------------------- the forward pass
    def forward(self, *inputs, **kwargs):
        with record_function("DistributedDataParallel.forward"):
            reduces = is_grad_enabled() and self.require_backward_grad_sync
            if reduces:
                self.reducer.prepare()
            work = Join.notify_join_context(self)
            self.reducer.shared = None if self._divide_by_initial_world_size else work
            if self.process_group.size() > 1 and self.will_sync_module_buffers():
                self._sync_buffers()
            if self._join_config.enable:
                tell_whether_reduced(self, self.require_backward_grad_sync)
            if self.device_ids:
                inputs, kwargs = moved((inputs, kwargs), Device(self.device_type, self.device_ids[0]))
            output = self.module(*inputs, **kwargs)
            if reduces:
                self.reducer.arm({x.node for x in tensors_in(output) if x.requires_grad} if self.find_unused_parameters else ())
            if self.require_forward_param_sync is not reduces:
                self.require_forward_param_sync = reduces
            return output

    @contextlib.contextmanager
    def no_sync(self):
        """A context whose forward passes call for no reduction: gradients add up in this rank until one outside of it is reduced.

        >>> import tritorch as torch
        >>> from tritorch import distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        >>> with model.no_sync():
        ...     model(torch.ones(2, 1)).sum().backward()
        >>> model(torch.ones(2, 1)).sum().backward(); model.module.bias.grad
        tensor([4.])
        >>> dist.destroy_process_group()
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state, hook):
        """Let `hook(state, bucket)` say what becomes of a full bucket (a `distributed.GradBucket`): it returns a Future of one tensor of
        the bucket's size, mostly that of an `all_reduce(async_op=True)`. Gradients in it are not yet divided by the number of ranks.

        Raises TypeError for a hook that cannot be called, RuntimeError for a second one.
        """
        check(callable(hook), "register_comm_hook", "a hook that can be called", type(hook).__name__, error=TypeError)
        check(self.reducer.hook is None, "register_comm_hook", "one hook", "a second")
        self.reducer.hook = state, hook

    # -------------------------------------------------------------- uneven inputs
    def join(self, divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False):
        """A context in which ranks may have different numbers of inputs: see `distributed.algorithms.Join`.

        Ranks without inputs add zeros to the gradients of the others, which are divided by the number of all ranks, or with
        `divide_by_initial_world_size=False` of those that still work. At the end all take over the parameters of one that worked longest.
        """
        return Join([self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size)

    def _get_ddp_logging_data(self):
        """Facts for logs, under PyTorch's names."""
        return {"world_size": self.process_group.size(), "rank": self.process_group.rank(), "module_name": type(self.module).__name__,
                "find_unused_parameters": self.find_unused_parameters, "gradient_as_bucket_view": self.gradient_as_bucket_view,
                "static_graph": self.static_graph, "broadcast_buffers": self.forward_sync_buffers}

    def join_hook(self, **kwargs):
        """The JoinHook of this module; `divide_by_initial_world_size` is the only keyword it heeds."""
        check(not self.skip_all_reduce_unused_params, "join", "all buckets to travel", "skip_all_reduce_unused_params=True")
        return JoinedRank(self, kwargs.get("divide_by_initial_world_size", True))

    @property
    def join_device(self):
        """Where the parameters are."""
        return self.device

    @property
    def join_process_group(self):
        """The process group."""
        return self.process_group


def default_group():
    """The group of all processes."""
    check(dist.is_initialized(), NAME, "the default process group", "none", error=ValueError, use="distributed.init_process_group() first")
    return dist.group.WORLD


def devices(parameters, device_ids, output_device):
    """(type of device, [index] where one is given, index of the outputs' device)."""
    check(any(p.requires_grad for p in parameters), NAME, "a parameter that requires a gradient", "none", use="the module itself")
    check(not any(isinstance(p, UninitializedParameter) for p in parameters), NAME, "parameters of known shapes", "an uninitialized one",
          use="a forward pass of the module before")
    check(device_ids is None or len(device_ids) < 2, NAME, "device_ids of at most one device", device_ids, error=ValueError)
    types = sorted({p.device.type for p in parameters})
    check(len(types) == 1, NAME, "all parameters on devices of one type", types, error=ValueError)
    if not device_ids or types[0] == "cpu" or len({p.device for p in parameters}) > 1:
        check(not device_ids and not output_device, NAME, "no device_ids and output_device for a module on the CPU or several devices",
              device_ids, output_device, error=ValueError)
        return types[0], None, None
    index = index_of(device_ids[0])
    return types[0], [index], index if output_device is None else index_of(output_device)


def index_of(device):
    """The index of a GPU."""
    return device if isinstance(device, int) else Device(device).index or 0


def moved(x, device):
    """The tensors in containers on a device, the rest as it is."""
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[moved(v, device) for v in x])
    if isinstance(x, (list, tuple)):
        return type(x)([moved(v, device) for v in x])
    if isinstance(x, dict):
        return type(x)([(k, moved(v, device)) for k, v in x.items()])
    return x


def tensors_in(x):
    """The tensors in containers and dataclasses."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict):
        for v in x.values():
            yield from tensors_in(v)
    elif isinstance(x, (list, tuple)):
        for v in x:
            yield from tensors_in(v)
    elif is_dataclass(x) and not isinstance(x, type):
        for f in fields(x):
            yield from tensors_in(getattr(x, f.name))
