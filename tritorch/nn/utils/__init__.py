"""Gradient clipping, parameters as one vector or made of others, batch norms folded into layers, sequences of different lengths."""
from tritorch.nn.utils import init, memory_format, parametrizations, parametrize, prune, rnn, stateless
from tritorch.nn.utils.clip_grad import clip_grad_norm, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from tritorch.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from tritorch.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval, fuse_linear_bn_weights
from tritorch.nn.utils.init import skip_init
from tritorch.nn.utils.memory_format import convert_conv2d_weight_memory_format, convert_conv3d_weight_memory_format
from tritorch.nn.utils.spectral_norm import remove_spectral_norm, spectral_norm
from tritorch.nn.utils.weight_norm import remove_weight_norm, weight_norm
