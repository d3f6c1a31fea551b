"""What is built on collectives: uneven inputs (join), and hooks that say how gradients travel (ddp_comm_hooks)."""
from tritorch.distributed.algorithms import ddp_comm_hooks, join
from tritorch.distributed.algorithms.join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable", "ddp_comm_hooks", "join"]
