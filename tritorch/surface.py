"""What the modules above the operators put on Tensor and offer as `tritorch.name`."""
import builtins

from tritorch import (
    interop,
    pickling,
    printing,
    protocol,
    random,  # noqa: F401  (it completes tritorch.cuda)
    sparse_methods,
    storage_methods,
    tensor_methods,
    typed,
)
from tritorch.autograd import engine, inference_mode
from tritorch.cuda.device import current_device
from tritorch.device import _current
from tritorch.ops import complex, counting, frexp, hashing, methods, of_numbers, predicates, renorm, view_copy  # noqa: F401 (completed)
from tritorch.storage import UntypedStorage
from tritorch.tensor import Tensor

METHODS = {
    "numpy": interop.numpy, "__array__": interop.array_protocol, "__array_wrap__": interop.array_wrap, "__dlpack__": interop.to_dlpack,
    "__dlpack_device__": interop.dlpack_device, "__reduce_ex__": pickling.reduce_ex, "__copy__": pickling.shallow_copy,
    "__setstate__": pickling.set_state, "__deepcopy__": pickling.deep_copy, "__repr__": printing.tensor_repr,
    "__format__": printing.tensor_format,
    "type": typed.type_, **{f.__name__: f for f in (
        typed.new, storage_methods.set_, storage_methods.share_memory_, storage_methods.is_shared, storage_methods.resize_,
        storage_methods.resize_as_, tensor_methods.map2_, protocol.as_subclass, tensor_methods.module_load, tensor_methods.to_dense,
        tensor_methods.sum_to_size, tensor_methods.record_stream,
        tensor_methods.stft, tensor_methods.istft,
        view_copy.narrow_copy, view_copy.unsafe_chunk, view_copy.unsafe_split, view_copy.unsafe_split_with_sizes,
        counting.nonzero_static, hashing.hash_tensor, frexp.angle, frexp.frexp, predicates.const_data_ptr, predicates.dim_order,
        predicates.is_conj,
        predicates.is_distributed, predicates.is_neg, predicates.is_same_size, predicates.is_set_to, predicates._is_view,
        renorm.renorm, renorm.renorm_)},
    "_execution_engine": engine, **sparse_methods.METHODS,
}
STORAGE_METHODS = {"cpu": storage_methods.to_cpu, "cuda": storage_methods.to_device, "copy_": storage_methods.copy_,
                   "clone": storage_methods.clone, "share_memory_": storage_methods.share_storage_,
                   "is_shared": storage_methods.is_shared, "from_file": staticmethod(storage_methods.from_file),
                   "__getitem__": storage_methods.get_bytes, "__setitem__": storage_methods.set_bytes, "tolist": storage_methods.tolist,
                   "element_size": storage_methods.element_size}

# names of `tritorch` and the modules that load when one of them is first asked for: `import tritorch` stays light
HOMES = {
    "serialization": "load save",
    "random": "default_generator fork_rng get_rng_state initial_seed manual_seed seed set_rng_state",
    "amp": """GradScaler autocast autocast_decrement_nesting autocast_increment_nesting clear_autocast_cache get_autocast_cpu_dtype
            get_autocast_dtype get_autocast_gpu_dtype is_autocast_cache_enabled is_autocast_cpu_enabled is_autocast_enabled
            set_autocast_cache_enabled set_autocast_cpu_dtype set_autocast_cpu_enabled set_autocast_dtype set_autocast_enabled
            set_autocast_gpu_dtype""",
    "requirements": """_assert_async _check _check_index _check_is_size _check_not_implemented _check_tensor_all
            _check_tensor_all_with _check_type _check_value _check_with""",
    "precision": "get_float32_matmul_precision set_float32_matmul_precision",
    "alias": "as_torch",
    "compiler": "_disable_dynamo compile",
    "func": "vmap",
    "jit": "_assert ScriptModule TensorType",
    "determinism": """are_deterministic_algorithms_enabled get_deterministic_debug_mode is_deterministic_algorithms_warn_only_enabled
            set_deterministic_debug_mode use_deterministic_algorithms""",
    "switches": """get_device_module get_num_interop_threads init_num_threads is_vulkan_available is_warn_always_enabled
            set_anomaly_enabled set_flush_denormal set_num_interop_threads set_warn_always""",
    "typed": """BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor
            set_default_tensor_type ShortTensor typename""",
    "threads": "get_num_threads set_num_threads",
    "eigenpairs": "lobpcg",
    "native": """adaptive_max_pool1d affine_grid_generator alpha_dropout alpha_dropout_ batch_norm bilinear
            binary_cross_entropy_with_logits constant_pad_nd cosine_embedding_loss ctc_loss dropout_ embedding embedding_bag
            feature_alpha_dropout feature_alpha_dropout_ feature_dropout feature_dropout_ frobenius_norm grid_sampler grid_sampler_2d
            grid_sampler_3d group_norm hinge_embedding_loss instance_norm kl_div layer_norm margin_ranking_loss native_batch_norm
            native_channel_shuffle native_dropout native_group_norm native_layer_norm norm_except_dim poisson_nll_loss
            triplet_margin_loss""",
    "recurrent": "gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell",
    "ops.binomial": "binomial",
    "ops.dropout": "rrelu rrelu_",
    "ops.batchnorm_gather": """batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats
            batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats""",
    "ops.fake_quantize": "fake_quantize_per_channel_affine fake_quantize_per_tensor_affine",
    "ops.fake_quantize_learned": "_fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine",
    "ops.moving_range": "fused_moving_avg_obs_fake_quant",
    "ops.pooling_places": "max_pool1d_with_indices",
    "ops.volumes": "max_pool3d",
    "ops.view_copy": """alias_copy as_strided_copy detach_copy diagonal_copy expand_copy fill narrow_copy permute_copy select_copy
            slice_copy split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsafe_chunk unsafe_split
            unsafe_split_with_sizes unsqueeze_copy view_as_complex_copy view_as_real_copy view_copy""",
    "ops.counting": "histogramdd nonzero_static range",
    "ops.hashing": "hash_tensor",
    "ops.frexp": "angle frexp",
    "ops.predicates": "get_device is_conj is_distributed is_inference is_neg is_same_size is_signed",
    "ops.differences": "gradient",
    "ops.renorm": "renorm",
    "ops.stft": "istft stft",
    "ops.segment_reduce": "segment_reduce",
    "signal.windows": "bartlett_window blackman_window hamming_window hann_window kaiser_window",
    "control": "cond",
    "cuda": "Event Stream",
    "dtype": """int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7 qint32 qint8 quint2x4 quint4x2 quint8
            chalf complex32 float4_e2m1fn_x2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu""",
    "schemes": """per_channel_affine per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine per_tensor_symmetric
            qscheme""",
    "futures": "Future",
    "storage": "UntypedStorage",
    "symbolic": "SymBool SymFloat SymInt sym_float sym_int sym_max sym_min sym_not",
    "interop": "from_file",
    "storage_methods": "resize_as_",
    "file_reader": "PyTorchFileReader",
    "utils.dlpack": "to_dlpack",
    "nn.functional": """celu_ channel_shuffle cosine_similarity pairwise_distance pdist pixel_shuffle pixel_unshuffle selu_
            threshold_""",
    "ops.create": "empty_permuted",
    "sparse.construct": """sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor
            sparse_csr_tensor""",
    "sparse.products": "dsmm hsmm hspmm saddmm smm sspaddmm",
    "sparse.parts": """ccol_indices_copy col_indices_copy crow_indices_copy indices_copy resize_as_sparse_ row_indices_copy
            values_copy""",
}
LAZY = {name: home for home, names in HOMES.items() for name in names.split()}
EVERY = "_foreach_"                                                      # names that begin with it are in `foreach`
PACKAGES = ("_C", "__config__", "__future__", "_custom_ops", "_dynamo", "_higher_order_ops", "_inductor", "_jit_internal", "_library",
            "_ops", "_prims_common", "_subclasses", "_tensor_str", "_utils", "accelerator", "amp", "ao", "backends", "compiler", "cpu",
            "distributed", "distributions", "export", "fft", "func", "functional", "futures", "fx", "hub", "jit", "library", "linalg",
            "masked", "mps", "multiprocessing", "nn", "onnx", "optim", "overrides", "profiler", "quantization", "quasirandom", "random",
            "return_types", "safetensors", "serialization", "signal", "sparse", "special", "testing", "types", "utils", "version", "xpu")


def attach():
    """Complete Tensor, and tell `device("cuda")` which index is current."""
    for name, f in METHODS.items():
        setattr(Tensor, name, f)
    for name, f in STORAGE_METHODS.items():
        setattr(UntypedStorage, name, f)
    Tensor.__new__ = staticmethod(typed.new_tensor)
    Tensor.__init_subclass__, Tensor.__torch_function__ = classmethod(protocol.subclassed), classmethod(protocol.torch_function)
    Tensor.__init__ = protocol.initialized
    Tensor._make_subclass = staticmethod(protocol.make_subclass)
    Tensor._make_wrapper_subclass = staticmethod(protocol.make_wrapper_subclass)
    Tensor.name, Tensor.output_nr = None, property(tensor_methods.output_nr)
    Tensor.real, Tensor.imag = property(complex.real, complex.set_real), property(complex.imag, complex.set_imag)
    Tensor.mH = property(complex.adjoint, doc="The last two dims exchanged, complex numbers conjugated.")
    Tensor.H = property(complex.matrix_adjoint, doc="The transpose of a matrix, complex numbers conjugated.")
    Tensor._seen_as, Tensor.__complex__ = complex.seen_as, methods.as_number(builtins.complex)
    Tensor._followed = inference_mode(False)(complex.seen_as)            # records in whatever mode a view is asked for its history
    Tensor.__array_priority__ = 1000                                     # numpy arrays leave `array + tensor` to the tensor
    Tensor.__cuda_array_interface__ = property(interop.cuda_array_interface)
    pickling.findable("tritorch", methods.surface)
    _current[0] = current_device
