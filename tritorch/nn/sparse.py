"""Embedding and EmbeddingBag: rows of a table, looked up by index."""
from tritorch.nn import functional as F
from tritorch.nn import init
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset


class Embedding(Module):
    """Rows of `weight` (num_embeddings, embedding_dim): integer indices (*) give (*, embedding_dim). The table starts from N(0, 1).

    The row of `padding_idx` starts at zero and gets no gradient. With `max_norm` the rows that are looked up are first scaled down, in
    place, to that `norm_type`-norm; with `scale_grad_by_freq` the gradient of a row is divided by the times that it is looked up. With
    `sparse` the gradient of the table is a sparse tensor, for SGD, Adagrad or SparseAdam.

    >>> import tritorch as torch
    >>> torch.nn.Embedding(10, 3)(torch.tensor([[1, 2, 4, 5]])).shape
    tritorch.Size([1, 4, 3])
    """

    def __init__(self, num_embeddings, embedding_dim, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,
                 sparse=False, _weight=None, _freeze=False, device=None, dtype=None):
        super().__init__()
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise AssertionError("Padding_idx must be within num_embeddings")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = max_norm, norm_type, scale_grad_by_freq, sparse
        if _weight is not None and tuple(_weight.shape) != (num_embeddings, embedding_dim):
            raise AssertionError(f"Embedding: expected a weight of shape ({num_embeddings}, {embedding_dim}), got {tuple(_weight.shape)}")
        self.weight = Parameter(unset((num_embeddings, embedding_dim), device, dtype) if _weight is None else _weight, not _freeze)
        if _weight is None:
            self.reset_parameters()

    def reset_parameters(self):
        """Draw the table anew."""
        init.normal_(self.weight)
        self._fill_padding_idx_with_zero()

    def _fill_padding_idx_with_zero(self):
        if self.padding_idx is not None:
            init.zeros_(self.weight.detach()[self.padding_idx])

    def forward(self, input):
        return F.embedding(input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)

    def extra_repr(self):
        shown = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            shown += f", padding_idx={self.padding_idx}"
        if self.max_norm is not None:
            shown += f", max_norm={self.max_norm}"
        if self.norm_type != 2:
            shown += f", norm_type={self.norm_type}"
        if self.scale_grad_by_freq:
            shown += f", scale_grad_by_freq={self.scale_grad_by_freq}"
        return shown + ", sparse=True" if self.sparse else shown

    @classmethod
    def from_pretrained(cls, embeddings, freeze=True, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,
                        sparse=False):
        """An embedding over a given table (2 dims), which is not trained if `freeze`."""
        if embeddings.ndim != 2:
            raise AssertionError(f"Embedding.from_pretrained: expected a table of 2 dims, got {embeddings.ndim}")
        return cls(*embeddings.shape, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight=embeddings, _freeze=freeze)


class EmbeddingBag(Module):
    """The sum, mean or largest elements ("max") of rows of `weight` (num_embeddings, embedding_dim), for each bag of indices.

    Indices (B, L) give (B, embedding_dim), as do a vector of indices and `offsets` (B,), where bags begin; with `include_last_offset` there
    is one more, where the last ends. The row of `padding_idx` starts at zero and does not count; see `nn.functional.embedding_bag` for the
    rest. The table starts from N(0, 1). With `sparse` its gradient is a sparse tensor.

    >>> import tritorch as torch
    >>> torch.nn.EmbeddingBag(10, 3, mode="sum")(torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 3])).shape
    tritorch.Size([2, 3])
    """

    def __init__(self, num_embeddings, embedding_dim, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean", sparse=False,
                 _weight=None, include_last_offset=False, padding_idx=None, device=None, dtype=None):
        super().__init__()
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise AssertionError("padding_idx must be within num_embeddings")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset
        shape = num_embeddings, embedding_dim
        if _weight is not None and tuple(_weight.shape) != shape:
            raise AssertionError(f"EmbeddingBag: expected a weight of shape {shape}, got {tuple(_weight.shape)}")
        self.weight = Parameter(unset(shape, device, dtype) if _weight is None else _weight)
        if _weight is None:
            self.reset_parameters()

    reset_parameters = Embedding.reset_parameters
    _fill_padding_idx_with_zero = Embedding._fill_padding_idx_with_zero

    def forward(self, input, offsets=None, per_sample_weights=None):
        return F.embedding_bag(input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse,
                               per_sample_weights, self.include_last_offset, self.padding_idx)

    def extra_repr(self):
        shown = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.max_norm is not None:
            shown += f", max_norm={self.max_norm}"
        if self.norm_type != 2:
            shown += f", norm_type={self.norm_type}"
        if self.scale_grad_by_freq:
            shown += f", scale_grad_by_freq={self.scale_grad_by_freq}"
        shown += f", mode={self.mode!r}"
        return shown if self.padding_idx is None else shown + f", padding_idx={self.padding_idx}"

    @classmethod
    def from_pretrained(cls, embeddings, freeze=True, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean", sparse=False,
                        include_last_offset=False, padding_idx=None):
        """A bag over a given table (2 dims), which is not trained if `freeze`."""
        if embeddings.ndim != 2:
            raise AssertionError(f"EmbeddingBag.from_pretrained: expected a table of 2 dims, got {embeddings.ndim}")
        made = cls(*embeddings.shape, max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset, padding_idx)
        made.weight.requires_grad = not freeze
        return made
