"""CommDebugMode: counts the collectives that DTensors do."""
import threading

from tritorch.autograd.modes import state
from tritorch.distributed.tensor import exchange
from tritorch.distributed.tensor.dtensor import DTensor
from tritorch.nn.hooks import register_module_forward_hook, register_module_forward_pre_hook


class CommDebugMode:
    """Counts, in the thread that enters it, the collectives that DTensors do, by their names ("all_reduce", "all_gather_into_tensor",
    "reduce_scatter_tensor", "all_to_all_single", "broadcast", "scatter"), and by module, forward and backward.

    >>> import tritorch as torch
    >>> from tritorch import distributed as dist
    >>> from tritorch.distributed.tensor import Replicate, Shard, ones
    >>> from tritorch.distributed.tensor.debug import CommDebugMode
    >>> mesh = dist.init_device_mesh("cpu", (1,))
    >>> with CommDebugMode() as mode:
    ...     y = ones(2, 2, device_mesh=mesh, placements=[Shard(0)]).redistribute(placements=[Replicate()])
    >>> mode.get_comm_counts(), mode.get_total_counts()
    ({'all_gather_into_tensor': 1}, 1)
    >>> dist.destroy_process_group()
    """

    def __init__(self):
        self.comm_counts, self.comm_module_counts, self.stack, self.hooks = {}, {}, [], ()
        self.parameters, self.sharding, self.thread = {}, {}, None

    def __enter__(self):
        for found in (self.comm_counts, self.comm_module_counts, self.parameters, self.sharding):
            found.clear()
        self.stack, self.thread = [], threading.get_ident()
        self.comm_module_counts["Global"] = {"forward": {}, "backward": {}}
        self.hooks = register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave, always_call=True)
        exchange.watchers.append(self._tell)
        return self

    def __exit__(self, *exception):
        exchange.watchers.remove(self._tell)
        for hook in self.hooks:
            hook.remove()

    def _enter(self, module, inputs):
        above = self.stack[-1] if self.stack else None
        own = next((name for name, m in above[0].named_modules() if m is module), None) if above else None
        name = type(module).__name__ if above is None else f"{above[1]}.{own or type(module).__name__}"
        self.stack.append((module, name))
        parameters = dict(module.named_parameters(recurse=False))
        if parameters:
            self.parameters[name] = {key: p.detach() for key, p in parameters.items()}
            self.sharding.update({f"{name}.{key}": p.placements for key, p in parameters.items() if isinstance(p, DTensor)})

    def _leave(self, module, inputs, output):
        if self.stack:
            self.stack.pop()

    def _tell(self, name, group):
        if threading.get_ident() != self.thread:
            return
        self.comm_counts[name] = self.comm_counts.get(name, 0) + 1
        way = "forward" if state.run is None else "backward"
        for module in ("Global", *[n for _, n in self.stack]):
            counts = self.comm_module_counts.setdefault(module, {"forward": {}, "backward": {}})[way]
            counts[name] = counts.get(name, 0) + 1

    def get_total_counts(self):
        """How many collectives there were."""
        return sum(self.comm_counts.values())

    def get_comm_counts(self):
        """How many of each name."""
        return self.comm_counts

    def get_parameter_info(self):
        """The parameters of each module that ran."""
        return self.parameters

    def get_sharding_info(self):
        """The placements of each parameter that is a DTensor, of modules that ran."""
        return self.sharding

    def generate_comm_debug_tracing_table(self):
        """The counts by module, as text. A backward pass counts for the whole program."""
        lines = []
        for module, ways in self.comm_module_counts.items():
            lines.append("  " * module.count(".") + module)
            for way, counts in ways.items():
                lines += [f"{'  ' * module.count('.')}    {way}: {name} {n}" for name, n in counts.items()]
        return "\n".join(lines)

    def log_comm_debug_tracing_table_to_file(self, file_name="comm_mode_log.txt"):
        """Write that text to a file."""
        with open(file_name, "w", encoding="utf-8") as file:
            file.write(self.generate_comm_debug_tracing_table() + "\n")
