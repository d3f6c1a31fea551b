"""The functions behind the layers, with PyTorch's signatures: operators as they are, and what is composed of them."""
from tritorch.nn.functional.activation import (
    celu,
    celu_,
    elu,
    elu_,
    gumbel_softmax,
    hardsigmoid,
    hardswish,
    hardtanh,
    hardtanh_,
    leaky_relu,
    leaky_relu_,
    log_softmax,
    mish,
    relu,
    relu6,
    relu_,
    selu,
    selu_,
    silu,
    softmax,
    softmin,
    threshold,
    threshold_,
)
from tritorch.nn.functional.attention import multi_head_attention_forward
from tritorch.nn.functional.blocks import (
    channel_shuffle,
    fold,
    interpolate,
    native_channel_shuffle,
    pixel_shuffle,
    pixel_unshuffle,
    unfold,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)
from tritorch.nn.functional.distance import cosine_similarity, normalize, pairwise_distance, pdist
from tritorch.nn.functional.margins import (
    cosine_embedding_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    poisson_nll_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from tritorch.nn.functional.pooling import local_response_norm, lp_pool1d, lp_pool2d, lp_pool3d
from tritorch.nn.functional.sampling import affine_grid, grid_sample
from tritorch.ops.activation import gelu, hardshrink, logsigmoid, prelu, softplus, softshrink, softsign, tanhshrink
from tritorch.ops.attention import scaled_dot_product_attention
from tritorch.ops.bags import embedding_bag
from tritorch.ops.batchnorm import batch_norm, instance_norm
from tritorch.ops.batchnorm_relu import batch_norm_relu
from tritorch.ops.convolution import conv1d, conv2d, conv_transpose1d, conv_transpose2d
from tritorch.ops.convolution_volumes import conv3d, conv_tbc, conv_transpose3d
from tritorch.ops.ctc import ctc_loss
from tritorch.ops.dropout import alpha_dropout, dropout, dropout1d, dropout2d, dropout3d, feature_alpha_dropout, rrelu, rrelu_
from tritorch.ops.embedding import embedding
from tritorch.ops.feed_forward import feed_forward
from tritorch.ops.fractional_pooling import fractional_max_pool2d, fractional_max_pool3d
from tritorch.ops.glu import glu
from tritorch.ops.grouped import grouped_mm
from tritorch.ops.groupnorm import group_norm
from tritorch.ops.linear_cross_entropy import linear_cross_entropy
from tritorch.ops.linear_residual import linear_dropout_add
from tritorch.ops.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from tritorch.ops.matmul import bilinear, linear
from tritorch.ops.normalize import layer_norm, rms_norm
from tritorch.ops.padding import pad
from tritorch.ops.picking import one_hot
from tritorch.ops.pointwise import sigmoid
from tritorch.ops.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    avg_pool2d,
    max_pool1d,
    max_pool2d,
    max_unpool1d,
    max_unpool2d,
)
from tritorch.ops.pooling_places import (
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d_with_indices,
    fractional_max_pool2d_with_indices,
    fractional_max_pool3d_with_indices,
    max_pool1d_with_indices,
    max_pool2d_with_indices,
    max_pool3d_with_indices,
)
from tritorch.ops.residual_norm import dropout_add_layer_norm, dropout_add_rms_norm
from tritorch.ops.rotary import rotary_embedding
from tritorch.ops.scaled import ScalingType, scaled_mm
from tritorch.ops.trigonometry import tanh
from tritorch.ops.volumes import adaptive_avg_pool3d, adaptive_max_pool3d, avg_pool3d, max_pool3d, max_unpool3d
from tritorch.pickling import findable

findable(__name__, {name: f for name, f in globals().items() if not name.startswith("_")})
