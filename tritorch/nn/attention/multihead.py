"""Multi-head attention."""
from tritorch.nn import functional as F
from tritorch.nn import init
from tritorch.nn.linear import Linear
from tritorch.nn.module import Module
from tritorch.nn.parameter import Parameter, unset


class NonDynamicallyQuantizableLinear(Linear):
    """`Linear`, under the name that PyTorch gives to the output projection of attention."""


class MultiheadAttention(Module):
    """softmax(Q Kᵀ / sqrt(head_dim)) V in `num_heads` heads, between linear projections. Vaswani et al. 2017.

    Query (L, N, embed_dim), key (S, N, kdim) and value (S, N, vdim), or with N first if `batch_first`, or without N, give the output
    in the query's shape and, if `need_weights`, the attention weights (N, L, S), or (N, num_heads, L, S) if not averaged.
    In the masks True means "do not attend"; floats are added to the scores. `add_bias_kv` appends a trained key and value,
    `add_zero_attn` zeros.

    >>> import tritorch as torch
    >>> x = torch.ones(2, 5, 8)
    >>> y, weights = torch.nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x)
    >>> y.shape, weights.shape
    (tritorch.Size([2, 5, 8]), tritorch.Size([2, 5, 5]))
    """

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, add_bias_kv=False, add_zero_attn=False, kdim=None, vdim=None,
                 batch_first=False, device=None, dtype=None):
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(f"MultiheadAttention: expected a positive embed_dim and num_heads, got {embed_dim} and {num_heads}")
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        together = {"in_proj_weight": (3 * embed_dim, embed_dim)}
        apart = {"q_proj_weight": (embed_dim, embed_dim), "k_proj_weight": (embed_dim, self.kdim), "v_proj_weight": (embed_dim, self.vdim)}
        used, unused = (together, apart) if self._qkv_same_embed_dim else (apart, together)
        for name, shape in used.items():
            self.register_parameter(name, Parameter(unset(shape, device, dtype)))
        for name in unused:
            self.register_parameter(name, None)
        self.register_parameter("in_proj_bias", Parameter(unset((3 * embed_dim,), device, dtype)) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, device, dtype)
        self.bias_k, self.bias_v = (Parameter(unset((1, 1, embed_dim), device, dtype)) if add_bias_kv else None for _ in "kv")
        self._reset_parameters()

    def _reset_parameters(self):
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.xavier_normal_(extra)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, average_attn_weights=True,
                is_causal=False):
        flip = self.batch_first and query.ndim == 3
        if flip:
            same_key, same_value = key is query, value is key
            query = query.transpose(0, 1)
            key = query if same_key else key.transpose(0, 1)
            value = key if same_value else value.transpose(0, 1)
        output, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, self.bias_k, self.bias_v,
            self.add_zero_attn, self.dropout, self.out_proj.weight, self.out_proj.bias, self.training, key_padding_mask, need_weights,
            attn_mask, not self._qkv_same_embed_dim, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight,
            average_attn_weights=average_attn_weights, is_causal=is_causal)
        return output.transpose(0, 1) if flip else output, weights
