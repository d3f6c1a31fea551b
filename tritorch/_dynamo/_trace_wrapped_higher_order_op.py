"""What transformers takes from a file of PyTorch's compiler."""


class TransformGetItemToIndex:
    """Nothing, as a context: `vmap` reads `x[i]` by batched numbers i anyway, which PyTorch's does inside of this one alone.

    >>> import tritorch as torch
    >>> with TransformGetItemToIndex():
    ...     torch.vmap(lambda i: torch.tensor([5, 6, 7])[i])(torch.tensor([2, 0]))
    tensor([7, 5])
    """

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass
