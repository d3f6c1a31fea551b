"""Sequences of different lengths: padded into one tensor, or packed, step by step, without padding."""
from collections import namedtuple

from tritorch.errors import explained
from tritorch.ops.create import tensor
from tritorch.ops.shaping import cat, stack
from tritorch.tensor import Tensor


class PackedSequence(namedtuple("PackedSequence", ["data", "batch_sizes", "sorted_indices", "unsorted_indices"])):
    """Sequences without padding: `data` (Σ lengths, *) holds all first steps, then all second steps, …, longest sequence first;
    `batch_sizes[t]` (on the CPU) says how many sequences have a step t, the indices how they were sorted and how to undo it.
    """

    __slots__ = ()

    def __new__(cls, data, batch_sizes=None, sorted_indices=None, unsorted_indices=None):
        if unsorted_indices is None and sorted_indices is not None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args, **kwargs):
        """The sequences on another device or of another dtype; themselves where nothing changes."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        indices = (None if i is None else i.to(data.device) for i in (self.sorted_indices, self.unsorted_indices))
        return type(self)(data, self.batch_sizes, *indices)

    def cuda(self, *args, **kwargs):
        return self.to(self.data.cuda(*args, **kwargs).device)

    def cpu(self):
        return self.to("cpu")

    def double(self):
        return self._replace(data=self.data.double())

    def float(self):
        return self._replace(data=self.data.float())

    def half(self):
        return self._replace(data=self.data.half())

    @property
    def is_cuda(self):
        return self.data.is_cuda


def invert_permutation(permutation):
    """The permutation that undoes another, or None for None."""
    return None if permutation is None else permutation.argsort()


@explained
def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Pack a padded batch (T, B, *), or (B, T, *) if `batch_first`, whose sequences have the given lengths.

    With `enforce_sorted` they must come longest first, else they are sorted here.

    >>> import tritorch as torch
    >>> x = torch.tensor([[1, 2, 0], [3, 0, 0], [4, 5, 6]])
    >>> torch.nn.utils.rnn.pack_padded_sequence(x, [2, 1, 3], batch_first=True, enforce_sorted=False).data.tolist()
    [4, 1, 3, 5, 2, 6]
    """
    lengths = [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
    if batch_first:
        input = input.transpose(0, 1)
    if len(lengths) != input.shape[1]:
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={input.shape[1]})")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    if min(lengths) <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0")
    indices = None
    if enforce_sorted:
        if order != list(range(len(lengths))):
            raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
                               "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement.")
    else:
        indices = tensor(order, device=input.device)
        input, lengths = input.index_select(1, indices), [lengths[i] for i in order]
    if lengths[0] > input.shape[0]:
        raise RuntimeError(f"Expected no length to be more than the {input.shape[0]} padded steps, got {lengths[0]}")
    sizes = [sum(n > t for n in lengths) for t in range(lengths[0])]
    return PackedSequence(cat([input[t, :size] for t, size in enumerate(sizes)]), tensor(sizes), indices)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """Undo `pack_padded_sequence`: the padded batch, `total_length` steps long if given, and the lengths (on the CPU).

    >>> import tritorch as torch
    >>> packed = torch.nn.utils.rnn.pack_sequence([torch.tensor([1, 2]), torch.tensor([3])])
    >>> torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0].tolist()
    [[1, 2], [3, 0]]
    """
    sizes = sequence.batch_sizes.tolist()
    steps = len(sizes) if total_length is None else total_length
    if steps < len(sizes):
        raise ValueError(f"pad_packed_sequence: expected total_length >= {len(sizes)}, the longest sequence, got {total_length}")
    lengths = [sum(size > i for size in sizes) for i in range(sizes[0])]
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    sequences = [sequence.data[tensor([starts[t] + i for t in range(n)], device=sequence.data.device)] for i, n in enumerate(lengths)]
    padded = pad_sequence(sequences, False, padding_value)
    if steps > len(sizes):
        rest = padded.new_full((steps - len(sizes), *padded.shape[1:]), padding_value)
        padded = cat([padded, rest])
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = [lengths[i] for i in sequence.unsorted_indices.tolist()]
    return padded.transpose(0, 1) if batch_first else padded, tensor(lengths)


@explained
def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    """Sequences (L_i, *) as one tensor (max L, B, *), or (B, max L, *) if `batch_first`, the rest filled with `padding_value`.

    >>> import tritorch as torch
    >>> torch.nn.utils.rnn.pad_sequence([torch.tensor([1, 2]), torch.tensor([3])], batch_first=True).tolist()
    [[1, 2], [3, 0]]
    """
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"pad_sequence: expected padding_side 'left' or 'right', got {padding_side!r}")
    sequences = list(sequences)
    if not sequences:
        raise RuntimeError("pad_sequence: expected sequences, got an empty list")
    longest = max(x.shape[0] for x in sequences)

    def padded(x):
        if x.shape[0] == longest:
            return x
        rest = x.new_full((longest - x.shape[0], *x.shape[1:]), padding_value)
        return cat([x, rest] if padding_side == "right" else [rest, x])

    return stack([padded(x) for x in sequences], 0 if batch_first else 1)


def unpad_sequence(padded_sequences, lengths, batch_first=False):
    """Undo `pad_sequence`: the sequences, cut to their lengths.

    >>> import tritorch as torch
    >>> torch.nn.utils.rnn.unpad_sequence(torch.tensor([[1, 4], [2, 5], [3, 0]]), torch.tensor([3, 2]))
    [tensor([1, 2, 3]), tensor([4, 5])]
    """
    if not batch_first:
        padded_sequences = padded_sequences.transpose(0, 1)
    return [sequence[:int(n)] for sequence, n in zip(padded_sequences, lengths)]


def pack_sequence(sequences, enforce_sorted=True):
    """Pack sequences (L_i, *); with `enforce_sorted` they must come longest first.

    >>> import tritorch as torch
    >>> packed = torch.nn.utils.rnn.pack_sequence([torch.tensor([1, 2, 3]), torch.tensor([4, 5])])
    >>> packed.data, packed.batch_sizes
    (tensor([1, 4, 2, 5, 3]), tensor([2, 2, 1]))
    """
    sequences = list(sequences)
    return pack_padded_sequence(pad_sequence(sequences), [x.shape[0] for x in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences):
    """Undo `pack_sequence`."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences, batch_first=True), batch_first=True)
