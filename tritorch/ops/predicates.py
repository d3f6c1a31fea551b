"""What a tensor is, asked by functions of `tritorch` and methods of Tensor."""
from tritorch.errors import check, explained, tensors
from tritorch.memory_format import channels_last, channels_last_3d, contiguous_format, innermost_first, lies_in, memory_format


@explained
def is_signed(input):
    """Whether the dtype has negative values.

    >>> import tritorch as torch; torch.is_signed(torch.tensor([1])), torch.is_signed(torch.tensor([True]))
    (True, False)
    """
    tensors("is_signed", input=input)
    return input.dtype.is_signed


@explained
def is_same_size(input, other):
    """Whether two tensors have one shape.

    >>> import tritorch as torch; torch.is_same_size(torch.ones(2), torch.zeros(3))
    False
    """
    tensors("is_same_size", input=input, other=other)
    return input.shape == other.shape


@explained
def is_set_to(self, tensor):
    """Whether two tensors read the same memory in the same way.

    >>> import tritorch as torch; x = torch.ones(2, 3); x.is_set_to(x.view(2, 3)), x.is_set_to(x.t())
    (True, False)
    """
    return (self.data_ptr(), self.shape, self.strides, self.dtype) == (tensor.data_ptr(), tensor.shape, tensor.strides, tensor.dtype)


@explained
def _is_view(self):
    """Whether the tensor shows memory of another one, its `_base`.

    >>> import tritorch as torch; x = torch.ones(2, 3); x._is_view(), x[0]._is_view(), x.detach()._is_view()
    (False, True, False)
    """
    return self.base is not None


@explained
def is_conj(input):
    """Always False: no tensor is marked to be conjugated when it is read."""
    tensors("is_conj", input=input)
    return False


@explained
def is_neg(input):
    """Always False: no tensor is marked to be negated later."""
    tensors("is_neg", input=input)
    return False


@explained
def is_inference(input):
    """Whether the tensor was made in inference mode."""
    tensors("is_inference", input=input)
    return input.is_inference()


@explained
def is_distributed(input):
    """Always False, of DTensors too, as in PyTorch: those are told by their class."""
    tensors("is_distributed", input=input)
    return False


@explained
def get_device(input):
    """Index of the CUDA device, -1 on the CPU and on meta."""
    tensors("get_device", input=input)
    return input.get_device()


def const_data_ptr(self):
    """Address of the first element, for those who only read."""
    return self.data_ptr()


def dim_order(self, *, ambiguity_check=False):
    """The dims in their order in memory, outermost first. With `ambiguity_check` a RuntimeError if sizes of 1 or equal strides allow other
    orders, too; of a list of memory formats, unless just one of them is the tensor's.

    >>> import tritorch as torch; torch.empty(2, 3, 4).transpose(0, 2).dim_order()
    (2, 1, 0)
    """
    if not isinstance(ambiguity_check, bool):
        right = isinstance(ambiguity_check, list) and all(isinstance(f, memory_format) for f in ambiguity_check)
        check(right, "dim_order", "True, False or a list of memory formats as ambiguity_check", repr(ambiguity_check), error=TypeError)
    shape, strides, wanted = tuple(self.shape), self.strides, ambiguity_check is not False and ambiguity_check != []
    if ambiguity_check is not False:
        several = any(n <= 1 for n in shape) or len(set(strides)) < len(strides)
        fitting = [] if ambiguity_check is True else [f for f in ambiguity_check if _lies(shape, strides, f)]
        check(not several or len(fitting) == 1, "dim_order", "one order of the dims in memory", shape, strides)
    if self.ndim < 2:
        return tuple(range(self.ndim))
    plain, last = _lies(shape, strides, contiguous_format), _lies(shape, strides, channels_last)
    if plain is not last:
        return tuple(range(self.ndim)) if plain else (0, 2, 3, 1)
    order, undecided = innermost_first(shape, strides)
    check(not wanted or not undecided, "dim_order", "one order of the dims in memory", shape, strides)
    return tuple(order[::-1])


def _lies(shape, strides, wanted):
    """Whether elements lie gapless in the order of a format, if it is one for so many dims."""
    return len(shape) == {channels_last: 4, channels_last_3d: 5}.get(wanted, len(shape)) and lies_in(shape, strides, wanted)
