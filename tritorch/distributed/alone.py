"""The collectives of one process: each copies what its only rank gives to where its only rank receives. No connections, any device."""
from tritorch.autograd import no_grad
from tritorch.distributed.failures import DistBackendError
from tritorch.distributed.group import ProcessGroup
from tritorch.distributed.work import Work, finished
from tritorch.errors import check, sentence


class ProcessGroupAlone(ProcessGroup):
    """A group of one rank, whatever its backend is called."""

    def __init__(self, name):
        super().__init__(0, 1)
        self._label = name

    def _do(self, call, tensors, *args):
        check(False, self.name(), "a call that a group of one has", call)

    def shutdown(self):
        """Nothing is open."""

    abort = shutdown

    def allreduce(self, tensors, opts=None, timeout=None):
        """The tensors stay what they are."""
        return finished(list(tensors))

    allreduce_coalesced = broadcast = reduce = allreduce

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None):
        """A copy."""
        return self._deliver([row[0] for row in output_tensors], input_tensors)

    gather = allgather

    def _allgather_base(self, output_tensor, input_tensor, opts=None):
        return self._deliver([output_tensor], [input_tensor])

    _reduce_scatter_base = _allgather_base

    def scatter(self, output_tensors, input_tensors, opts=None):
        """A copy."""
        return self._deliver(output_tensors, [row[0] for row in input_tensors])

    reduce_scatter = scatter

    def alltoall(self, output_tensors, input_tensors, opts=None):
        """A copy."""
        return self._deliver(output_tensors, input_tensors)

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None):
        """A copy."""
        return self._deliver([output], [input])

    def barrier(self, opts=None, timeout=None):
        """Nobody to wait for."""
        return finished()

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Nobody to wait for."""

    def send(self, tensors, dst, tag=0):
        """PyTorch, too, has no messages to oneself."""
        check(False, "send", "another rank", dst, error=ValueError)

    recv = send

    def recv_anysource(self, tensors, tag=0):
        """There is nobody who could send."""
        work = Work("recv")
        work.finish(DistBackendError(sentence("recv", "another rank that could send", "a group of one")))
        return work

    def _deliver(self, into, given):
        with no_grad():
            for out, x in zip(into, given):
                if out is not x:
                    out.copy_(x.reshape(out.shape))
        return finished(list(into))
