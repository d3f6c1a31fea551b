"""Gradient clipping, parameters as one vector, sequences of different lengths."""
from tritorch.nn.utils import rnn
from tritorch.nn.utils.clip_grad import clip_grad_norm, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from tritorch.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
