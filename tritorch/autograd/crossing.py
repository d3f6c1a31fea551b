"""Backward on several streams: every rule runs on the stream that its forward call ran on, and waits for what it reads.

Nothing here runs while only default streams are in use. A gradient is made on the stream of the node that made it; the node
that takes it waits for that stream, and the allocator learns that the memory is used on both. At the end the caller's streams
wait for all others, so that `.grad` can be read at once.
"""
from tritorch.cuda.allocator import Owner, record_stream, record_use
from tritorch.cuda.device import current_device, set_device
from tritorch.cuda.stream import OnlyStream, chosen, current_handle, current_stream, default_stream, set_stream
from tritorch.layout import strided
from tritorch.tensor import Tensor


def note(node):
    """What a new node has to remember where this thread has chosen streams: which, and that they will read its saved tensors."""
    node.streams = chosen()
    for value in node.saved:
        sparse = isinstance(value, Tensor) and value.layout is not strided
        first = [part.storage for part in value.parts] if sparse else value[:1] if type(value) is tuple else ()
        for storage in first:
            if isinstance(getattr(storage, "owner", None), Owner):
                index = storage.device.index
                record_use(storage.owner, index, current_handle(index))


class Crossing:
    """The streams of one pass: where each waiting gradient was made, and which streams have work of this pass."""

    def __init__(self):
        self.home, self.device = chosen(), current_device()
        self.here = self.home
        self.made, self.used = {}, set()                                 # node -> streams that its gradients come from
        mine = current_stream()
        self.stands_for = {mine.device.index: mine} if type(mine) is OnlyStream else {}

    def enter(self, node, grads):
        """Make the streams of a node's forward call current, and let them wait for its gradients."""
        self.switch(node.streams)
        self.take(self.made.pop(node, None), [g for g in grads if g is not None])

    def enter_leaf(self, leaf, g):
        """Leaves accumulate on the caller's streams."""
        self.switch(self.home)
        self.take(self.made.pop(leaf, None), [g])

    def switch(self, streams):
        if streams is self.here:
            return
        for s in self.here or ():
            set_stream(self.default(s.device))
        for s in streams or ():
            set_stream(s)
        self.here = streams
        if current_device() != self.device:
            set_device(self.device)

    def default(self, device):
        """The stream of a device where none was chosen."""
        stream = self.stands_for.get(device.index)
        return default_stream(device) if stream is None else stream

    def take(self, sources, gradients):
        """The current streams wait for the sources and share the gradients' memory. Gradients from before the first crossing
        have no sources noted: they were made on default streams."""
        for g in gradients:
            if g.storage.device.type == "cuda":
                mine = current_stream(g.device)
                for source in {self.default(g.device)} if sources is None else sources:
                    if source != mine:
                        mine.wait_stream(source)
                for part in g.__dict__.get("parts", (g,)):               # those of a sparse gradient
                    if isinstance(part.storage.owner, Owner):
                        record_stream(part.storage.owner, mine)

    def meet(self, target, old):
        """What waits for `target` will be added to, on the current stream."""
        self.take(self.made.get(target), [old])

    def leave(self, target, g, old):
        """A gradient made on the current stream is left for `target`; it will be added, here, to an old one that is there already."""
        if g.storage.device.type != "cuda":
            return
        mine = current_stream(g.device)
        if old is not None:
            self.meet(target, old)
        self.made[target] = {*[s for s in self.made.get(target, ()) if s.device is not mine.device], mine}
        self.used.add(mine)

    def close(self, captured):
        """Back on the caller's streams, which wait for all work of the pass."""
        self.switch(self.home)
        for s in self.used:
            mine = current_stream(s.device)
            if s != mine:
                mine.wait_stream(s)
        self.take((), [g for g in captured if g is not None])
