"""What the stages of a pipeline send each other: tensors, and the first time what they look like."""
from typing import NamedTuple

from tritorch.distributed.messages import irecv, isend
from tritorch.distributed.objects import _bytes, _device, _empty, _number, _object
from tritorch.errors import check
from tritorch.ops.create import zeros
from tritorch.tensor import empty


class Form(NamedTuple):
    """What there is to know of a tensor before it comes."""

    shape: tuple
    dtype: object
    requires_grad: bool

    @classmethod
    def of(cls, x, training):
        return cls(tuple(x.shape), x.dtype, training and x.requires_grad)


class Mail:
    """The messages of a rank of a group. `place` names what is passed on: (stage that takes it, microbatch, whether gradients come back).
    All of one place look as the first ones did, whose forms travel before them."""

    def __init__(self, group, device):
        self.group, self.device, self.forms, self.under_way = group, device, {}, []

    def send(self, place, tensors, to):
        """Begin to send what a stage takes."""
        self.know(place, [Form.of(x, place[2]) for x in tensors], to)
        self._send(tensors, to)

    def receive(self, place, of):
        """Begin to receive it from rank `of`; a function that waits for it."""
        if place not in self.forms:
            size = _number(0, _device(self.group))
            irecv(size, group=self.group, group_src=of).wait()
            data = _empty(int(size.item()), size.device)
            irecv(data, group=self.group, group_src=of).wait()
            self.forms[place] = _object(data, size)
        forms = self.forms[place]
        wait = self._receive(forms, of)

        def ready():
            return [x.requires_grad_() if form.requires_grad else x for x, form in zip(wait(), forms)]

        return ready

    def know(self, place, forms, to=None):
        """Hold the forms of what is passed on against those of the first time, or remember them and tell rank `to`."""
        known = self.forms.setdefault(place, forms)
        if known is forms and to is not None:
            data, size = _bytes(forms, _device(self.group))
            self._send([size, data], to)
        stage, batch, _ = place
        check(known == forms, "pipelining", f"microbatch {batch} to leave stage {stage - 1} as in the first step, {known}", forms,
              use="a schedule of its own for batches of other shapes")

    def send_back(self, place, gradients, to):
        """Begin to send the gradients of what a stage has taken."""
        self._send(self.whole(place, gradients), to)

    def receive_back(self, place, of):
        """Begin to receive them, of the tensors that require them; a function that waits for it."""
        return self._receive([form for form in self.forms[place] if form.requires_grad], of)

    def whole(self, place, gradients):
        """The gradients, zeros where a stage does not use what it has taken."""
        forms = [form for form in self.forms[place] if form.requires_grad]
        return [zeros(form.shape, dtype=form.dtype, device=self.device) if g is None else g for g, form in zip(gradients, forms)]

    def _send(self, tensors, to):
        with self.group.together():
            for x in tensors:
                x = x.detach().contiguous()
                self.under_way.append((isend(x, group=self.group, group_dst=to), x))

    def _receive(self, forms, of):
        with self.group.together():
            found = [empty(form.shape, form.dtype, self.device) for form in forms]
            works = [irecv(x, group=self.group, group_src=of) for x in found]

        def wait():
            for work in works:
                work.wait()
            return found

        return wait

    def over(self):
        """Wait until all has been sent."""
        for work, _ in self.under_way:
            work.wait()
        self.under_way.clear()
