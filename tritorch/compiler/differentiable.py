"""Recordings whose results have gradients: the backward pass is a second graph, and autograd sees one node."""
from __future__ import annotations

import threading
import weakref

from tritorch.autograd.engine import grad
from tritorch.autograd.function import Function, once_differentiable
from tritorch.compiler.capture import Capture, one_at_a_time
from tritorch.compiler.checks import unchanged
from tritorch.compiler.containers import flatten
from tritorch.compiler.reads import Reads
from tritorch.compiler.recording import Recording
from tritorch.compiler.watch import Refused, Watch
from tritorch.cuda.stream import current_handle
from tritorch.errors import check
from tritorch.tensor import Leaf, empty_like


class DifferentiableRecording(Recording):
    """One forward pass and its gradients. Memory between the two belongs to the last call: until its backward pass has run, or its
    results are gone, other calls run eagerly."""

    pending = None                                                       # the node of the last call, weakly

    def __init__(self, owner, watch, before, result, reads, places):
        super().__init__(owner, watch, before, result, reads, places)
        kept = self.left.with_history(watch.capture) if self.left is not None else []
        outs = [x for x, (k, _) in zip(flatten(result)[0], self.parts) if k == -1] + kept
        sources = [x for x in (*watch.inputs, *self.leaves) if x.requires_grad]
        if any(leaf.node.hooks is not None and leaf.node.hooks.tensor for leaf in self.leaves if type(leaf.node) is Leaf):
            raise Refused("hooks on parameters that a graph would run once")              # others run when the gradients are accumulated
        self.sources = [k for k, x in enumerate(watch.inputs) if x.requires_grad], [x for x in self.leaves if x.requires_grad]
        self.seeds = [empty_like(x) if x.requires_grad else None for x in outs]
        self.statics = [x for k, x in self.parts if k == -1] + [x.detach() for x in kept]
        capture = Capture(self.index, watch.capture.stream, watch.capture.pool)
        after = Watch(owner, (), watch, capture)
        capture.later = True
        try:
            with capture, after.watching():
                roots = [(x, g) for x, g in zip(outs, self.seeds) if g is not None]
                given = [x for x, _ in roots], sources, [g for _, g in roots]
                found = grad(*given, retain_graph=True, allow_unused=True) if sources else []
        finally:
            after.over()
        self.found, self.backward = [None if g is None else g.detach() for g in found], capture.graph
        self.kept += [storage for _, storage, _ in after.externals.values()]
        self.reads.extend(Reads({**watch.expected.codes, **after.codes}, [owner.function, *watch.modules.values()]))
        self.reads_hold = unchanged(self.reads, self.reads.quick)
        self.inputs = [x.detach() for x in self.inputs]

    def meets(self, given):
        """Also whether a backward pass may still want the memory of the last call."""
        return self.pending is not None and self.pending() is not None or super().meets(given)

    def __call__(self, given, play=None):
        made = iter(_Replay.apply(self, given, play or self.play, *[given[k] for k in self.sources[0]], *self.sources[1]))
        result = self.form.unflatten([next(made) if k == -1 else x if k is None else given[k] for k, x in self.parts])
        self.settle(given, made)
        return result


class _Replay(Function):
    """The node of a call: forward(recording, arguments, how to replay, what wants a gradient)."""

    @staticmethod
    def forward(ctx, recording, given, play, *sources):
        rooms = [*map(recording.room, recording.statics)]                # before it: where they do not fit, nothing has run
        play(given)
        ctx.recording, ctx.versions = recording, recording.versions()
        outs = tuple(recording.filled(rooms))
        ctx.mark_non_differentiable(*[x for x, g in zip(outs, recording.seeds) if g is None])
        recording.pending = weakref.ref(ctx)
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        recording = ctx.recording
        mine = recording.pending is not None and recording.pending() is ctx
        check(mine, "compile", "one backward pass for each call, before the next call", "another")
        check(ctx.versions == recording.versions(), "compile", "parameters as they were in the forward pass",
              "some that were written since", use="backward before the optimizer's step")
        for seed, g in zip(recording.seeds, grads):
            if seed is not None:
                seed.copy_(g)
        with one_at_a_time:
            recording.order.follow(recording.index, current_handle(recording.index))
            recording.backward.replay()
            found = recording.found
            if threading.active_count() > 1:                             # another thread may replay before these have been read
                made = iter(recording.filled([recording.room(g) for g in found if g is not None]))
                found = [g if g is None else next(made) for g in found]
            recording.pending = None
        return None, None, None, *found
