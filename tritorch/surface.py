"""What the modules above the operators put on Tensor and offer as `tritorch.name`."""
from tritorch import interop, pickling, printing, random, storage_methods, typed  # noqa: F401  (random completes tritorch.cuda)
from tritorch.cuda.device import current_device
from tritorch.device import _current
from tritorch.storage import UntypedStorage
from tritorch.tensor import Tensor

METHODS = {
    "numpy": interop.numpy, "__array__": interop.array_protocol, "__array_wrap__": interop.array_wrap, "__dlpack__": interop.to_dlpack,
    "__dlpack_device__": interop.dlpack_device, "__reduce_ex__": pickling.reduce_ex, "__copy__": pickling.shallow_copy,
    "__deepcopy__": pickling.deep_copy, "__repr__": printing.tensor_repr, "__format__": printing.tensor_format,
    "type": typed.type_, "new": typed.new, "set_": storage_methods.set_, "share_memory_": storage_methods.share_memory_,
    "is_shared": storage_methods.is_shared,
}
STORAGE_METHODS = {"cpu": storage_methods.to_cpu, "cuda": storage_methods.to_device, "copy_": storage_methods.copy_,
                   "clone": storage_methods.clone, "share_memory_": storage_methods.share_storage_,
                   "is_shared": storage_methods.is_shared}

# names of `tritorch` and the modules that load when one of them is first asked for: `import tritorch` stays light
LAZY = {
    "save": "serialization", "load": "serialization", "manual_seed": "random", "seed": "random", "initial_seed": "random",
    "get_rng_state": "random", "set_rng_state": "random", "fork_rng": "random", "autocast": "amp", "is_autocast_enabled": "amp",
    "is_autocast_cpu_enabled": "amp", "get_autocast_gpu_dtype": "amp", "get_autocast_cpu_dtype": "amp", "get_autocast_dtype": "amp",
    "set_autocast_dtype": "amp", "is_autocast_cache_enabled": "amp", "set_autocast_cache_enabled": "amp",
    "clear_autocast_cache": "amp", "set_float32_matmul_precision": "precision", "get_float32_matmul_precision": "precision",
    "compile": "compiler", "vmap": "func", "_assert": "jit", "are_deterministic_algorithms_enabled": "determinism",
    "use_deterministic_algorithms": "determinism", "get_num_threads": "threads", "set_num_threads": "threads", **dict.fromkeys(
        ("BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor",
         "ShortTensor"), "typed"), **dict.fromkeys(
        ("kl_div", "hinge_embedding_loss", "margin_ranking_loss", "triplet_margin_loss", "cosine_embedding_loss", "poisson_nll_loss",
         "binary_cross_entropy_with_logits", "ctc_loss", "embedding", "embedding_bag", "native_layer_norm", "native_group_norm",
         "native_batch_norm", "native_dropout", "native_channel_shuffle", "constant_pad_nd", "norm_except_dim", "frobenius_norm",
         "bilinear"), "native"), **dict.fromkeys(
        ("cosine_similarity", "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"), "nn.functional"),
}
EVERY = "_foreach_"                                                      # names that begin with it are in `foreach`
PACKAGES = ("_dynamo", "_inductor", "accelerator", "amp", "backends", "compiler", "cpu", "distributed", "distributions", "func", "fx",
            "hub", "jit", "library", "linalg", "multiprocessing", "nn", "optim", "profiler", "random", "safetensors", "serialization",
            "special", "testing", "utils", "version")


def attach():
    """Complete Tensor, and tell `device("cuda")` which index is current."""
    for name, f in METHODS.items():
        setattr(Tensor, name, f)
    for name, f in STORAGE_METHODS.items():
        setattr(UntypedStorage, name, f)
    Tensor.__new__ = staticmethod(typed.new_tensor)
    Tensor.__array_priority__ = 1000                                     # numpy arrays leave `array + tensor` to the tensor
    Tensor.__cuda_array_interface__ = property(interop.cuda_array_interface)
    _current[0] = current_device
