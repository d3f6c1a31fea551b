"""Methods of Tensor that programs for PyTorch meet seldom."""
from importlib import import_module

from tritorch.errors import check, explained, sentence
from tritorch.ops import copy, create, view
from tritorch.tensor import refresh


@explained
def map2_(self, x, y, callable):
    """Each element replaced by the Python function of it and those of x and y; on the CPU, slow.

    >>> import tritorch as torch; torch.tensor([1.0, 2.0]).map2_(torch.ones(2), torch.ones(1), lambda a, b, c: a + b * c)
    tensor([2., 3.])
    """
    places = {t.device.type for t in (self, x, y)}
    check(places == {"cpu"}, "map2_", "tensors on the CPU", *sorted(places), error=TypeError)
    check(not any(t.requires_grad for t in (self, x, y)), "map2_", "tensors without gradient", "requires_grad=True", use="detach()")
    columns = [view.reshape(view.expand_to(t, self.shape), -1).tolist() for t in (self, x, y)]
    values = create.tensor([callable(*row) for row in zip(*columns)], dtype=self.dtype)
    return copy.copy_(self, view.reshape(values, self.shape))


def module_load(self, other, assign=False):
    """What `load_state_dict` puts in the place of this tensor: the tensor itself, without history, with the values of `other` copied into
    it, or with `assign` the other one.

    >>> import tritorch as torch; torch.zeros(2).module_load(torch.ones(2))
    tensor([1., 1.])
    """
    return other.detach() if assign else copy.copy_(self, other).detach()


def to_dense(self, dtype=None, *, masked_grad=None):
    """The tensor itself, which is dense, or its values in another dtype."""
    return self if dtype is None else copy.to(self, dtype)


def output_nr(self):
    """Which output of `grad_fn` the tensor is."""
    if self.base is not None:
        refresh(self)
    return self.index


def stft(self, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode="reflect", normalized=False, onesided=None,
         return_complex=None, align_to_window=None):
    """`tritorch.stft` of this tensor."""
    transforms = import_module("tritorch.ops.stft")
    return transforms.stft(self, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex,
                           align_to_window)


def istft(self, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False, onesided=None, length=None,
          return_complex=False):
    """`tritorch.istft` of this tensor."""
    transforms = import_module("tritorch.ops.stft")
    return transforms.istft(self, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex)


def record_stream(self, stream):
    """Keep the memory from being used again before the work now queued on `stream` has run."""
    from tritorch.cuda.allocator import record_stream

    record_stream(self.storage.owner, stream)


def sum_to_size(input, *size, dtype=None):
    """Summed over the dims that broadcasting from `size` repeated: the opposite of `expand`. `dtype` is that of sums."""
    size = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    lead = len(input.shape) - len(size)
    if lead < 0 or any(n != 1 and n != m for n, m in zip(size, input.shape[lead:])):
        raise RuntimeError(sentence("sum_to_size", f"a size that expands to {tuple(input.shape)}", size))
    ones = tuple([k + lead for k, n in enumerate(size) if n == 1 and input.shape[k + lead] != 1])
    if not size or lead and not ones:
        return input.sum(tuple(range(lead)), dtype=dtype)
    out = input.sum((*range(lead), *ones), keepdim=True, dtype=dtype) if ones else input
    return out.reshape(size) if lead else out
