"""What operators are called in a profile, and how much they compute: PyTorch's names and its estimates."""
from math import prod

from tritorch.tensor import Tensor

# where PyTorch's name for what the user called is not the operator's own
NAMES = {
    "addcdiv_value": "addcdiv", "addcmul_value": "addcmul", "amin_amax": "aminmax", "assign": "copy_",
    "attention": "scaled_dot_product_attention", "attention_backward": "_scaled_dot_product_attention_backward", "avg_pool": "avg_pool2d",
    "avg_pool_input": "avg_pool2d_backward", "avg_pool_volume": "avg_pool3d", "avg_pool_volume_input": "avg_pool3d_backward",
    "batch_norm_apply": "batch_norm", "batch_norm_backward": "native_batch_norm_backward",
    "batch_norm_train": "batch_norm", "celu_of": "celu", "choose": "where", "clamp_numbers": "clamp", "concatenated": "cat",
    "constant_pad": "constant_pad_nd", "convolution_input": "convolution_backward", "convolution_weight": "convolution_backward",
    "copy_to": "_to_copy", "cross_entropy_rows": "cross_entropy_loss", "cummax_pair": "cummax", "cummin_pair": "cummin", "deviation": "std",
    "dirichlet_grad": "_dirichlet_grad", "div_true": "div", "expand_to": "expand", "fill": "fill_", "flip_dims": "flip",
    "fractional_max_pool": "fractional_max_pool3d", "gelu_erf": "gelu", "gelu_erf_backward": "gelu_backward", "gelu_tanh": "gelu",
    "gelu_tanh_backward": "gelu_backward",
    "group_norm_backward": "native_group_norm_backward", "group_norm_rows": "group_norm", "hardtanh_between": "hardtanh",
    "int_product": "_int_mm", "layer_norm_backward": "native_layer_norm_backward", "layer_norm_rows": "layer_norm",
    "linear_gradients": "linear_backward", "log_softmax_backward": "_log_softmax_backward_data", "logit_eps": "logit",
    "logsigmoid": "log_sigmoid", "max_along": "max", "max_pool": "max_pool2d", "max_pool_input": "max_pool2d_with_indices_backward",
    "max_pool_values": "max_pool2d", "max_pool_volume": "max_pool3d_with_indices",
    "max_pool_volume_input": "max_pool3d_with_indices_backward", "max_pool_volume_values": "max_pool3d", "min_along": "min",
    "nonzero_places": "nonzero", "order_statistic": "kthvalue",
    "permute_dims": "permute", "pick": "index_select", "polygamma1": "polygamma", "put": "index_put", "ramp": "arange",
    "random_bernoulli": "bernoulli_", "random_cauchy": "cauchy_", "random_coin": "bernoulli_", "random_dropout": "dropout",
    "random_exponential": "exponential_", "random_geometric": "geometric_", "random_integers": "random_",
    "random_log_normal": "log_normal_", "random_normal": "normal_", "random_normal_around": "normal", "random_poisson": "poisson",
    "random_race": "multinomial", "random_uniform": "uniform_", "relu_backward": "threshold_backward",
    "rms_norm_backward": "_fused_rms_norm_backward", "rms_norm_rows": "rms_norm", "roll_dims": "roll", "round_even": "round",
    "sample_dirichlet": "_sample_dirichlet", "scaled_product": "_scaled_mm", "scatter_write": "scatter",
    "search_sorted_rows": "searchsorted", "slice_dim": "slice",
    "softmax_backward": "_softmax_backward_data", "softshrink_at": "softshrink", "sorted_first": "topk", "squeeze_dims": "squeeze",
    "standard_gamma": "_standard_gamma", "standard_gamma_grad": "_standard_gamma_grad",
    "table_gradient": "embedding_dense_backward", "table_rows": "embedding", "threshold_at": "threshold", "triangle": "tril",
    "trunc_divide": "div", "variance": "var", "vector_norm": "linalg_vector_norm", "view_as_dtype": "view", "view_as_shape": "view",
    # of bags and of alignments
    "bag_dots": "_embedding_bag_per_sample_weights_backward", "bag_gradient": "_embedding_bag_dense_backward",
    "bag_maxima": "_embedding_bag", "bag_sums": "_embedding_bag", "ctc_backward": "_ctc_loss_backward", "ctc_rows": "_ctc_loss",
    "random_binomial": "binomial",
    # of matrices
    "cholesky_factor": "linalg_cholesky_ex", "determinant": "_linalg_det", "general_eigen": "linalg_eig",
    "general_eigenvalues": "linalg_eigvals", "geqrf_factors": "geqrf", "ldl_factors": "linalg_ldl_factor_ex",
    "ldl_solution": "linalg_ldl_solve", "log_determinant": "_linalg_slogdet",
    "lu_factors": "linalg_lu_factor_ex", "pseudo_inverse": "linalg_pinv", "qr_factors": "linalg_qr", "reflected": "ormqr",
    "row_order": "lu_unpack", "singular_values": "linalg_svdvals", "solve_complex": "_linalg_solve_ex", "solve_square": "_linalg_solve_ex",
    "substitute": "linalg_solve_triangular", "svd_factors": "_linalg_svd", "symmetric_eigen": "_linalg_eigh",
    "symmetric_eigenvalues": "linalg_eigvalsh",
    # of lists of tensors
    "cast_all": "_foreach_copy_", "clip_by_norm": "_foreach_mul_", "norm_parts": "_foreach_norm",
    "scale_by": "_amp_foreach_non_finite_check_and_unscale_", "update": "_fused_update_", "update_scale": "_amp_update_scale_",
}
NAMES |= {name: "special_" + name for name in """airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx i0e i1 i1e log_ndtr
    modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtr ndtri scaled_modified_bessel_k0
    scaled_modified_bessel_k1 spherical_bessel_j0 xlog1py zeta hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
    legendre_polynomial_p chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w""".split()}


def name_of(op, args, out=None):
    """The name of a call: aten::add, aten::add_ where it writes its first argument.

    >>> import tritorch as torch
    >>> name_of(torch.dispatch.registry["div_true"], ())
    'aten::div'
    """
    name = "aten::" + NAMES.get(op.__name__, op.__name__)
    return name + "_" if out is not None and args and out is args[0] and name[-1] != "_" else name


def _product(out, a, *_):
    return 2 * out.numel() * a.shape[-1]


def _layers(x, *weights):
    return 2 * (x.numel() // max(x.shape[-1], 1)) * sum(weight.numel() for weight in weights)


def _grouped(out, a, b, *_):
    return 2 * a.numel() * b.shape[-1]


def _convolution(out, x, weight, *_):
    return 2 * out.numel() * prod(weight.shape[1:])


def _convolution_input(out, g, weight, *_):
    return 2 * g.numel() * prod(weight.shape[1:])


def _convolution_weight(out, g, *_):
    return 2 * g.numel() * prod(out.shape[1:])


def _attention(outs, q, k, v, *_):
    return 2 * prod(q.shape[:3]) * k.shape[2] * (q.shape[3] + v.shape[3])


def _attention_backward(outs, g, q, k, v, *_):
    return 2 * prod(q.shape[:3]) * k.shape[2] * (3 * q.shape[3] + 2 * v.shape[3])          # the scores once more, and four products


def _each(out, *_):
    return out.numel()


FLOPS = {
    "matmul": _product, "int_product": _product, "scaled_product": _product, "grouped_rows": _grouped, "grouped_sums": _grouped,
    "addmm": lambda out, _, a, *rest: _product(out, a),
    "linear": lambda out, x, w, *_: _layers(x, w),
    "linear_residual": lambda out, x, w, *_: _layers(x, w),
    "linear_activation": lambda outs, x, w, *_: _layers(x, w),
    "linear_slope": lambda out, g, w, *_: _layers(g, w),
    "linear_gradients": lambda outs, g, x, *_: 2 * g.numel() * x.shape[-1],
    "feed_forward_layers": lambda outs, x, w1, _, w2, *rest: _layers(x, w1, w2),
    "linear_cross_entropy_rows": lambda outs, x, w, *_: _layers(x, w),
    "linear_cross_entropy_sum": lambda outs, x, w, *_: _layers(x, w, w, w),                # with both gradients
    "linear_cross_entropy_backward": lambda outs, g, x, w, *_: _layers(x, w, w, w),        # the scores once more
    "recurrent_layer": lambda outs, x, w_ih, w_hh, *_: _layers(x, w_ih, w_hh),
    "convolution": _convolution, "convolution_input": _convolution_input, "convolution_weight": _convolution_weight,
    "attention": _attention, "attention_backward": _attention_backward, "add": _each, "mul": _each,
}


def flops_of(op, args, result):
    """Floating point operations of a call, 0 where nothing is known: two for each product that is summed, whatever a mask leaves out;
    one for each element of add and mul. Packed sequences of `attention`, which no shape tells, count as one."""
    known = FLOPS.get(op.__name__)
    return known(result, *args) if known is not None else 0


def shapes_of(args):
    """The shapes of the arguments, [] of what is no tensor."""
    return [list(a.shape) if isinstance(a, Tensor) else
            [list(x.shape) for x in a] if type(a) is tuple and a and all(isinstance(x, Tensor) for x in a) else [] for a in args]
