"""nccl4py's API (nccl.core 0.6) for tensors on the simulated GPU: what it is given is checked as the library does, gloo moves the bytes."""
import contextlib
import sys
import types

import tritorch as torch
from tritorch import distributed as dist


class NcclRedOp:
    SUM, PROD, MAX, MIN, AVG = range(5)


OPS = {NcclRedOp.SUM: dist.ReduceOp.SUM, NcclRedOp.PROD: dist.ReduceOp.PRODUCT, NcclRedOp.MAX: dist.ReduceOp.MAX,
       NcclRedOp.MIN: dist.ReduceOp.MIN, NcclRedOp.AVG: dist.ReduceOp.AVG}
KNOWN = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class UniqueId:
    def __init__(self, data):
        self.as_bytes = data

    @staticmethod
    def from_bytes(b):
        assert isinstance(b, (bytes, bytearray, memoryview)) and len(b) == 128
        return UniqueId(bytes(b))


def get_unique_id(empty=False):
    return UniqueId(bytes(range(128)))


waiting = []                                                             # None, or what a group has collected


@contextlib.contextmanager
def group():
    waiting.append([])
    yield
    calls = waiting.pop()
    if waiting:
        waiting[-1].extend(calls)
    else:
        for stream in {call[3] for call in calls}:
            with running_on(stream):
                exchange([call[:3] for call in calls if call[3] == stream])


def running_on(stream):
    """What the library queues runs on the stream that it is given, whichever is current."""
    assert isinstance(stream, int)
    return torch.cuda.stream(torch.cuda.ExternalStream(stream))


def exchange(calls):
    receives = [call for call in calls if call[0] == "recv"]
    works = [(dist.irecv(host, peer), host, out) for _, peer, host, out in begun(receives)]
    own = [x for kind, peer, x in calls if kind == "send" and peer == dist.get_rank()]
    for kind, peer, x in calls:
        if kind == "send" and peer != dist.get_rank():
            dist.send(x.cpu(), peer)
    for work, host, out in works:
        work.wait()
        out.copy_(host.pin_memory(), non_blocking=True)
    for (_, _, out), x in zip([call for call in receives if call[1] == dist.get_rank()], own):
        out.copy_(x)


def begun(receives):
    return [(kind, peer, torch.empty(out.shape, dtype=out.dtype), out) for kind, peer, out in receives if peer != dist.get_rank()]


class Communicator:
    def __init__(self, ptr=None):
        self.destroyed = False

    @classmethod
    def init(cls, nranks, rank, unique_id, config=None):
        assert isinstance(unique_id, UniqueId) and (nranks, rank) == (dist.get_world_size(), dist.get_rank())
        return cls()

    def destroy(self):
        self.destroyed = True

    abort = destroy

    def _check(self, *buffers):
        assert not self.destroyed
        for x in buffers:
            assert x.is_cuda and x.dtype in KNOWN and x.ndim == 1 and x.is_contiguous() and not x.requires_grad, x

    def _through(self, call, recvbuf, sendbuf, stream):
        with running_on(stream):
            host = sendbuf.cpu()
            call(host)
            recvbuf.copy_(host.pin_memory(), non_blocking=True)

    def allreduce(self, sendbuf, recvbuf, op, *, stream=None, config=None):
        self._check(sendbuf, recvbuf)
        self._through(lambda x: dist.all_reduce(x, OPS[op]), recvbuf, sendbuf, stream)

    def reduce(self, sendbuf, recvbuf, op, root=None, *, stream=None, config=None):
        self._check(sendbuf, recvbuf)
        self._through(lambda x: dist.reduce(x, root, OPS[op]), recvbuf, sendbuf, stream)

    def broadcast(self, sendbuf, recvbuf, root, *, stream=None, config=None):
        self._check(sendbuf, recvbuf)
        self._through(lambda x: dist.broadcast(x, root), recvbuf, sendbuf, stream)

    def allgather(self, sendbuf, recvbuf, *, stream=None, config=None):
        self._check(sendbuf, recvbuf)
        assert recvbuf.numel() == sendbuf.numel() * dist.get_world_size()
        self._through(lambda x: dist.all_gather_into_tensor(x, sendbuf.cpu()), recvbuf, recvbuf, stream)

    def reduce_scatter(self, sendbuf, recvbuf, op, *, stream=None, config=None):
        self._check(sendbuf, recvbuf)
        assert sendbuf.numel() == recvbuf.numel() * dist.get_world_size()
        self._through(lambda x: dist.reduce_scatter_tensor(x, sendbuf.cpu(), OPS[op]), recvbuf, recvbuf, stream)

    def send(self, sendbuf, peer, *, stream=None):
        self._check(sendbuf)
        if waiting:
            waiting[-1].append(("send", peer, sendbuf, stream))
        else:
            with running_on(stream):
                dist.send(sendbuf.cpu(), peer)

    def recv(self, recvbuf, peer, *, stream=None):
        self._check(recvbuf)
        if waiting:
            waiting[-1].append(("recv", peer, recvbuf, stream))
        else:
            self._through(lambda x: dist.recv(x, peer), recvbuf, recvbuf, stream)


def install():
    """Have `from nccl import core` find this."""
    package, core = types.ModuleType("nccl"), types.ModuleType("nccl.core")
    package.__path__ = []
    for name in ("NcclRedOp", "UniqueId", "get_unique_id", "group", "Communicator"):
        setattr(core, name, globals()[name])
    core.__spec__, package.core = types.SimpleNamespace(name="nccl.core"), core
    sys.modules.update({"nccl": package, "nccl.core": core})
