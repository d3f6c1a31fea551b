"""Messages from one rank to another: send, recv, and several of them at once."""
from tritorch.distributed.collectives import one, place
from tritorch.distributed.failures import WrongTensors
from tritorch.distributed.world import _of, outside
from tritorch.errors import check


def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
    """Begin to send a tensor to rank `dst`. Returns a Work; the tensor must not be changed before its `wait()` has returned.

    A message is taken by a `recv` of the same tag, elements and dtype; those of one tag in the order in which they were sent.
    """
    if outside(group, "isend"):
        return None
    one("isend", "tensor", tensor)
    found = _of(group)
    to = place("isend", found, dst, group_dst)
    check(to != found.rank(), "isend", "another rank", "this one", error=ValueError)
    return found.send([tensor], to, _tagged("isend", tag))


def irecv(tensor, src=None, group=None, tag=0, group_src=None):
    """Begin to receive a tensor from rank `src`, or from any. Returns a Work."""
    if outside(group, "irecv"):
        return None
    one("irecv", "tensor", tensor)
    found = _of(group)
    if src is None and group_src is None:
        return found.recv_anysource([tensor], _tagged("irecv", tag))
    came = place("irecv", found, src, group_src)
    check(came != found.rank(), "irecv", "another rank", "this one", error=ValueError)
    return found.recv([tensor], came, _tagged("irecv", tag))


def _tagged(name, tag):
    check(isinstance(tag, int) and 0 <= tag < 1 << 63, name, "a tag ≥ 0", tag, error=WrongTensors)
    return tag


def send(tensor, dst=None, group=None, tag=0, group_dst=None):
    """Send a tensor to rank `dst`, and wait until it may be changed."""
    work = isend(tensor, dst, group, tag, group_dst)
    if work is not None:
        work.wait()


def recv(tensor, src=None, group=None, tag=0, group_src=None):
    """Receive a tensor from rank `src`, or from any. Returns the rank that sent it, -1 outside of the group."""
    work = irecv(tensor, src, group, tag, group_src)
    if work is None:
        return -1
    work.wait()
    if src is not None:
        return src
    found = _of(group)
    return found.ranks[work.source_rank() if group_src is None else group_src]


class P2POp:
    """A message for `batch_isend_irecv`: `op` is isend or irecv, `peer` the other rank (of the world; `group_peer`: of the group)."""

    def __init__(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        check(op in (isend, irecv), "P2POp", "isend or irecv", getattr(op, "__name__", op), error=ValueError)
        one("P2POp", "tensor", tensor)
        self.op, self.tensor, self.group, self.tag = op, tensor, _of(group), tag
        self.group_peer = place("P2POp", self.group, peer, group_peer)
        self.peer = self.group.ranks[self.group_peer]

    def __repr__(self):
        here, there = self.group.rank(), self.group_peer
        src, dst = (here, there) if self.op is isend else (there, here)
        return f"P2POp({self.op.__name__} pg={self.group.group_name}, group_src={src}, group_dst={dst}, {self.tensor.shape}, " \
               f"{self.tensor.dtype})"


def batch_isend_irecv(p2p_op_list):
    """Begin all messages of a list of P2POp; returns a list of Work."""
    check(isinstance(p2p_op_list, list) and all(isinstance(op, P2POp) for op in p2p_op_list), "batch_isend_irecv", "a list of P2POp",
          type(p2p_op_list).__name__, error=ValueError)
    check(len(p2p_op_list) > 0, "batch_isend_irecv", "at least one P2POp", "none", error=IndexError)
    groups = {id(op.group): op.group for op in p2p_op_list}
    check(len(groups) == 1, "batch_isend_irecv", "one group", len(groups), error=ValueError)
    (found,) = groups.values()
    with found.together():
        return [op.op(op.tensor, group=op.group, tag=op.tag, **{"group_dst" if op.op is isend else "group_src": op.group_peer})
                for op in p2p_op_list]
