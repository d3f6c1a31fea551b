"""PyTorch's switches and older names: what programs set or ask before they train."""
import subprocess
import sys

import numpy as np
import pytest

import tritorch as torch
from tritorch.nn import functional as F
from tritorch.nn.attention import SDPBackend, sdpa_kernel


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    torch.set_float32_matmul_precision("highest")


def test_tf32_is_the_precision_of_products():
    matmul = torch.backends.cuda.matmul
    assert not matmul.allow_tf32 and matmul.fp32_precision == "ieee" and not torch.backends.cudnn.allow_tf32
    matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("medium")
    matmul.allow_tf32 = True                                                  # says no more than that less than float32 is enough
    assert torch.get_float32_matmul_precision() == "medium"
    matmul.fp32_precision = "ieee"
    assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(RuntimeError, match="expected 'ieee', 'tf32' or 'none', got 'bf16x3'"):
        matmul.fp32_precision = "bf16x3"


def test_switches_of_cudnn_may_be_set():
    cudnn = torch.backends.cudnn
    cudnn.benchmark = cudnn.allow_tf32 = True
    assert cudnn.benchmark and not cudnn.allow_tf32 and not cudnn.is_available() and cudnn.version() is None
    with cudnn.flags(enabled=False, benchmark=False):
        assert not cudnn.benchmark
    assert cudnn.benchmark
    cudnn.benchmark = False
    assert not torch.backends.mps.is_available()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_attention_as_products_equals_the_fused_kernels(device, cuda):
    rng = np.random.default_rng(0)

    def leaf(*shape):
        return torch.tensor(rng.standard_normal(shape), dtype=torch.float32, device=device, requires_grad=True)

    q, k, v, mask = leaf(2, 4, 5, 8), leaf(2, 2, 7, 8), leaf(2, 2, 7, 6), leaf(5, 7)
    for options in (dict(is_causal=True), dict(attn_mask=mask), dict(attn_mask=mask > 0, dropout_p=0.5), dict(window_size=(1, 1))):
        results = []
        for allowed in (SDPBackend.MATH, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            torch.manual_seed(5)
            with sdpa_kernel(allowed):
                out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
            assert ("ttention" in out.grad_fn.name()) != (allowed is SDPBackend.MATH)
            results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
        for plain, fused in zip(*results):
            assert torch.allclose(plain, fused, rtol=1e-4, atol=1e-5)


def test_choice_of_attention_ends_with_its_block():
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(ZeroDivisionError), sdpa_kernel(SDPBackend.MATH):
        assert not torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.math_sdp_enabled()
        raise ZeroDivisionError
    assert torch.backends.cuda.flash_sdp_enabled()
    with pytest.raises(RuntimeError, match="at least one backend that may be used, got none"), sdpa_kernel([]):
        F.scaled_dot_product_attention(x, x, x)
    with pytest.raises(TypeError, match="members of SDPBackend"), sdpa_kernel("math"):
        pass
    with torch.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False, enable_cudnn=False):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    assert not torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(True)


def test_accelerator(cuda):
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == torch.cuda.device_count() and torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(0):
        assert torch.ones(1, device=torch.accelerator.current_accelerator()).device == torch.device("cuda", 0)


def test_no_accelerator():
    code = "import tritorch as t; print(t.accelerator.current_accelerator(), t.accelerator.is_available())"
    environment = {"TRITORCH_CUDA": "none", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["None", "False"], done.stderr


def test_old_constructors():
    assert torch.FloatTensor(2, 3).shape == (2, 3) and torch.FloatTensor(torch.Size((4,))).shape == (4,)
    assert torch.FloatTensor((2, 3)).tolist() == [2.0, 3.0] and torch.LongTensor([True, 7]).tolist() == [1, 7]
    assert torch.FloatTensor().shape == (0,) and torch.DoubleTensor(np.ones(2)).dtype is torch.float64
    assert isinstance(torch.zeros(2), torch.FloatTensor) and not isinstance(torch.zeros(2), torch.LongTensor)
    assert not isinstance(1.0, torch.FloatTensor)
    with pytest.raises(TypeError, match="sizes, or one sequence of values, got 2 arguments"):
        torch.FloatTensor([1.0], [2.0])


def test_determinism_and_versions():
    torch.use_deterministic_algorithms(True)
    assert torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    assert torch.version.__version__ == torch.__version__ and torch.version.hip is None


def test_threads_of_products():
    pytest.importorskip("threadpoolctl")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)
    assert torch.get_num_threads() == before
