"""Causal masks that are never made: `scaled_dot_product_attention` takes them as attn_mask, and its kernels leave out what they hide."""
import enum
import warnings

from tritorch.errors import check
from tritorch.ops.create import ones
from tritorch.ops.triangles import tril
from tritorch.tensor import Tensor

__all__ = ["CausalBias", "CausalVariant", "causal_lower_right", "causal_upper_left"]


class CausalVariant(enum.IntEnum):
    """Where the triangle of the keys that rows see begins: at the first row and key, or at the last ones."""

    UPPER_LEFT = 1
    LOWER_RIGHT = 2


class CausalBias(Tensor):
    """The mask of which row i of L sees the keys 0 … i, or of the other variant the keys 0 … i + S - L, of S.

    As attn_mask it has no elements; any other function than scaled_dot_product_attention refuses it.
    """

    def __new__(cls, variant, seq_len_q, seq_len_kv):
        check(isinstance(variant, CausalVariant), "CausalBias", "a CausalVariant", type(variant).__name__, error=AssertionError)
        return ones(0).as_subclass(cls)

    def __init__(self, variant, seq_len_q, seq_len_kv):
        self.variant, self.seq_len_q, self.seq_len_kv = variant, seq_len_q, seq_len_kv
        if seq_len_q > seq_len_kv and variant == CausalVariant.LOWER_RIGHT:
            warnings.warn("CausalBias: the first rows of a lower right mask of more rows than keys see no key, and give 0", stacklevel=3)

    def _materialize(self, device=None):
        """The mask, of bools."""
        diagonal = 0 if self.variant == CausalVariant.UPPER_LEFT else self.seq_len_kv - self.seq_len_q
        return tril(ones(self.seq_len_q, self.seq_len_kv, device=device).bool(), diagonal)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Attention under this mask."""
        from tritorch.nn.functional import scaled_dot_product_attention

        kwargs = dict(kwargs or {})
        names = "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
        check(func is scaled_dot_product_attention, getattr(func, "__name__", "CausalBias"),
              "a CausalBias as attn_mask of scaled_dot_product_attention alone", "another call", error=TypeError)
        kwargs = {**dict(zip(names, args)), **kwargs}
        bias = kwargs.pop("attn_mask")
        check(not kwargs.get("is_causal", False), "scaled_dot_product_attention", "either a CausalBias or is_causal", "both",
              error=ValueError)
        if bias.variant == CausalVariant.UPPER_LEFT or bias.seq_len_q == bias.seq_len_kv:
            return func(**kwargs, is_causal=True)
        if bias.seq_len_q < bias.seq_len_kv:
            return func(**kwargs, window_size=(-1, bias.seq_len_kv - bias.seq_len_q))
        return func(**kwargs, attn_mask=bias._materialize(kwargs["query"].device))

    def __repr__(self):
        return f"CausalBias(variant={self.variant.name}, seq_len_q={self.seq_len_q}, seq_len_kv={self.seq_len_kv})"


def causal_upper_left(*size):
    """The mask of L rows and S keys where row i sees the keys 0 … i.

    >>> from tritorch.nn.attention.bias import causal_upper_left
    >>> causal_upper_left(2, 3)._materialize().tolist()
    [[True, False, False], [True, True, False]]
    """
    check(len(size) == 2, "causal_upper_left", "the numbers of rows and keys", size)
    return CausalBias(CausalVariant.UPPER_LEFT, *size)


def causal_lower_right(*size):
    """The mask of L rows and S keys where the last row sees all keys, the one before it all but the last, and so on.

    >>> from tritorch.nn.attention.bias import causal_lower_right
    >>> causal_lower_right(2, 3)._materialize().tolist()
    [[True, True, False], [True, True, True]]
    """
    check(len(size) == 2, "causal_lower_right", "the numbers of rows and keys", size)
    return CausalBias(CausalVariant.LOWER_RIGHT, *size)
