"""The transformer. Vaswani et al. 2017."""
import copy

from tritorch.errors import check
from tritorch.nn import functional as F
from tritorch.nn import init
from tritorch.nn.attention import MultiheadAttention
from tritorch.nn.container import ModuleList
from tritorch.nn.dropout import Dropout
from tritorch.nn.linear import Linear
from tritorch.nn.module import Module
from tritorch.nn.norm import LayerNorm
from tritorch.nn.parameter import unset


def _activation(activation):
    if not isinstance(activation, str):
        return activation
    if activation not in ("relu", "gelu"):
        raise RuntimeError(f"activation: expected a function, 'relu' or 'gelu', got {activation!r}")
    return getattr(F, activation)


def _causal_mask(size, device=None, dtype=None):
    return unset((size, size), device, dtype).fill_(float("-inf")).triu_(1)


def _is_causal(mask, is_causal, size):
    """Whether the mask is known to be causal: what the caller says, or, if None, what the mask itself says."""
    if is_causal is not None or mask is None:
        return bool(is_causal)
    if not mask.is_floating_point() or tuple(mask.shape) != (size, size):
        return False
    return bool((mask == _causal_mask(size, mask.device, mask.dtype)).all())


def _sequence_length(x, batch_first):
    return x.shape[1 if batch_first and x.ndim == 3 else 0]


class _Layer(Module):
    """What encoder and decoder layers share: attention to oneself, the feed-forward network, and `norms` normalisations and dropouts.

    The parameters are made in PyTorch's order, as optimizers number them.
    """

    def __init__(self, d_model, nhead, dim_feedforward=2048, dropout=0.1, activation=F.relu, layer_norm_eps=1e-5, batch_first=False,
                 norm_first=False, bias=True, device=None, dtype=None):
        super().__init__()
        factory = {"bias": bias, "device": device, "dtype": dtype}
        for name in self._attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, batch_first=batch_first, **factory))
        self.linear1 = Linear(d_model, dim_feedforward, **factory)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **factory)
        self.norm_first = norm_first
        blocks = range(1, len(self._attentions) + 2)
        for i in blocks:
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, **factory))
        for i in blocks:
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = _activation(activation)

    def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
        x, _ = self.self_attn(x, x, x, key_padding_mask, need_weights=False, attn_mask=attn_mask, is_causal=is_causal)
        return self.dropout1(x)

    def _feed_forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each with dropout, residual and layer norm (before it if `norm_first`).

    `src` (S, N, d_model), or (N, S, d_model) if `batch_first`; the masks as in `MultiheadAttention`.

    >>> import tritorch as torch
    >>> torch.nn.TransformerEncoderLayer(8, 2, 16)(torch.ones(5, 2, 8)).shape
    tritorch.Size([5, 2, 8])
    """

    _attentions = ("self_attn",)

    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        x = src
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal))
        return self.norm2(x + self._ff_block(x))

    def _ff_block(self, x):
        return self.dropout2(self._feed_forward(x))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to `memory` and a feed-forward network, each with dropout, residual and layer norm.

    >>> import tritorch as torch
    >>> torch.nn.TransformerDecoderLayer(8, 2, 16)(torch.ones(5, 2, 8), torch.ones(7, 2, 8)).shape
    tritorch.Size([5, 2, 8])
    """

    _attentions = ("self_attn", "multihead_attn")

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None,
                tgt_is_causal=False, memory_is_causal=False):
        x = tgt
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), tgt_mask, tgt_key_padding_mask, tgt_is_causal)
            x = x + self._mha_block(self.norm2(x), memory, memory_mask, memory_key_padding_mask, memory_is_causal)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(x + self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        x = self.norm2(x + self._mha_block(x, memory, memory_mask, memory_key_padding_mask, memory_is_causal))
        return self.norm3(x + self._ff_block(x))

    def _mha_block(self, x, mem, attn_mask, key_padding_mask, is_causal=False):
        x, _ = self.multihead_attn(x, mem, mem, key_padding_mask, need_weights=False, attn_mask=attn_mask, is_causal=is_causal)
        return self.dropout2(x)

    def _ff_block(self, x):
        return self.dropout3(self._feed_forward(x))


class _Stack(Module):
    def __init__(self, layer, num_layers, norm=None):
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def _finish(self, x):
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """`num_layers` copies of an encoder layer, and a norm after the last if given.

    >>> import tritorch as torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
    >>> torch.nn.TransformerEncoder(layer, 2)(torch.ones(5, 2, 8)).shape
    tritorch.Size([5, 2, 8])
    """

    def __init__(self, encoder_layer, num_layers, norm=None, enable_nested_tensor=True, mask_check=True):
        super().__init__(encoder_layer, num_layers, norm)
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
        causal = _is_causal(mask, is_causal, _sequence_length(src, self.layers[0].self_attn.batch_first))
        for layer in self.layers:
            src = layer(src, src_mask=mask, is_causal=causal, src_key_padding_mask=src_key_padding_mask)
        return self._finish(src)


class TransformerDecoder(_Stack):
    """`num_layers` copies of a decoder layer, and a norm after the last if given."""

    def __init__(self, decoder_layer, num_layers, norm=None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None,
                tgt_is_causal=None, memory_is_causal=False):
        causal = _is_causal(tgt_mask, tgt_is_causal, _sequence_length(tgt, self.layers[0].self_attn.batch_first))
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                        memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=causal, memory_is_causal=memory_is_causal)
        return self._finish(tgt)


class Transformer(Module):
    """Encoder and decoder: `src` (S, N, d_model) and `tgt` (T, N, d_model), N first if `batch_first`, give (T, N, d_model).

    >>> import tritorch as torch
    >>> model = torch.nn.Transformer(8, 2, 1, 1, 16)
    >>> model(torch.ones(7, 2, 8), torch.ones(5, 2, 8)).shape
    tritorch.Size([5, 2, 8])
    """

    def __init__(self, d_model=512, nhead=8, num_encoder_layers=6, num_decoder_layers=6, dim_feedforward=2048, dropout=0.1,
                 activation=F.relu, custom_encoder=None, custom_decoder=None, layer_norm_eps=1e-5, batch_first=False, norm_first=False,
                 bias=True, device=None, dtype=None):
        super().__init__()
        factory = {"bias": bias, "device": device, "dtype": dtype}

        def stack(kind, layer, count):
            one = layer(d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, **factory)
            return kind(one, count, LayerNorm(d_model, layer_norm_eps, **factory))

        for name, given in (("custom_encoder", custom_encoder), ("custom_decoder", custom_decoder)):
            check(given is None or callable(given), "Transformer", f"a Module as {name}", given, error=TypeError)
        self.encoder = custom_encoder or stack(TransformerEncoder, TransformerEncoderLayer, num_encoder_layers)
        self.decoder = custom_decoder or stack(TransformerDecoder, TransformerDecoderLayer, num_decoder_layers)
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def forward(self, src, tgt, src_mask=None, tgt_mask=None, memory_mask=None, src_key_padding_mask=None, tgt_key_padding_mask=None,
                memory_key_padding_mask=None, src_is_causal=None, tgt_is_causal=None, memory_is_causal=False):
        if src.ndim != tgt.ndim or (src.ndim == 3 and src.shape[not self.batch_first] != tgt.shape[not self.batch_first]):
            raise RuntimeError(f"Transformer: expected src and tgt of one batch, got shapes {tuple(src.shape)} and {tuple(tgt.shape)}")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError(f"Transformer: expected {self.d_model} features, got src of {src.shape[-1]} and tgt of {tgt.shape[-1]}")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal, memory_is_causal=memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz, device=None, dtype=None):
        """The causal mask (sz, sz): zero on and below the diagonal, -inf above.

        >>> import tritorch as torch
        >>> torch.nn.Transformer.generate_square_subsequent_mask(2).tolist()
        [[0.0, -inf], [0.0, 0.0]]
        """
        return _causal_mask(sz, device, dtype)

    def _reset_parameters(self):
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)
