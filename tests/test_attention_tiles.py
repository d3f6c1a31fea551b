"""Which kernels and tiles attention tries, and in which order."""
import pytest

import tritorch as T
from tritorch.cuda import driver, tuner
from tritorch.cuda.dry import DryDriver
from tritorch.ops.attention import scaled_dot_product_attention


def test_hopper_kernels_are_among_the_candidates():
    """On a GPU of its kind each of the kernels has a form in Gluon, where it does what is asked for."""
    def families(size=128, **keywords):
        with tuner.trying_all() as met:
            x = [T.empty(4, 8, 512, size, dtype=T.bfloat16, device="cuda").requires_grad_() for _ in range(3)]
            g = T.empty(4, 8, 512, size, dtype=T.bfloat16, device="cuda")
            scaled_dot_product_attention(*x, **keywords).backward(g)
        return sorted({f for f, _, ways in met for way in ways if "gluon" in way["kernel"] and f.startswith("attention")})

    with driver.using(DryDriver(90)):
        assert families() == families(is_causal=True) == families(window_size=(1 << 40, 1 << 40)) == families(40) == families(72) == [
            "attention_backward", "attention_backward_kv", "attention_backward_q", "attention_forward"]
        two = ["attention_backward", "attention_forward"]
        assert families(32) == families(window_size=(64, 0)) == families(alibi_slopes=T.ones(8, device="cuda")) == two
        padding, shared = T.ones(4, 1, 1, 512, dtype=T.bool, device="cuda"), T.ones(512, device="cuda")
        assert families(dropout_p=0.1, is_causal=True) == families(attn_mask=padding) == families(attn_mask=shared, dropout_p=0.1) == two
        own = T.ones(4, 1, 512, 512, dtype=T.bool, device="cuda")
        three = ["attention_backward_kv", "attention_backward_q", "attention_forward"]
        assert families(attn_mask=own) == families(attn_mask=own[0], dropout_p=0.1) == three
        assert families(attn_mask=T.ones(512, 1, device="cuda")) == families(32, attn_mask=own.bfloat16()) == three
        assert families(256, attn_mask=own) == ["attention_forward"]
        assert families(60) == families(scale=-1.0) == families(dropout_p=1.0) == families(60, attn_mask=own) == []
        driver.use(DryDriver(100))
        assert families() == []


@pytest.mark.parametrize("length, size, keywords, first", [
    (1024, 64, {}, ("gluon 2", "apart", "plain", "gluon")), (4096, 64, {}, ("gluon 3", "together_gluon", "plain", "gluon")),
    (4096, 128, {}, ("gluon 2", "apart", "gluon", "gluon")), (1024, 256, {}, ("gluon 2", "apart", "gluon", "gluon 1")),
    (1024, 160, {"window_size": (64, 0)}, ("gluon 2", "apart", "gluon", "gluon 1")),
    (1024, 128, {"window_size": (64, 0)}, ("gluon 2", "together_gluon", "plain", "plain"))])
def test_what_was_quickest_comes_first(length, size, keywords, first):
    with driver.using(DryDriver(90)), tuner.trying_all() as met:
        x = [T.empty(4, 8, length, size, dtype=T.bfloat16, device="cuda").requires_grad_() for _ in range(3)]
        scaled_dot_product_attention(*x, is_causal=not keywords, **keywords).backward(T.empty_like(x[0]))
    ways = {family: ways[0] for family, _, ways in met}
    found = [ways[f"attention_{name}"] for name in ("forward", "backward", "backward_q", "backward_kv")]
    assert tuple(f"{way['kernel']} {way.get('GROUPS', '')}".strip() for way in found) == first


@pytest.mark.parametrize("shape, dtype, first", [((4, 1, 512, 512), T.bool, "gluon"), ((512, 512), T.bfloat16, "gluon"),
                                                 ((4, 8, 512, 512), T.bool, "gluon"), ((8, 512, 512), T.bfloat16, "plain")])
def test_masks_of_rows(shape, dtype, first):
    """Numbers that each head has for itself are not looked at twice."""
    with driver.using(DryDriver(90)), tuner.trying_all() as met:
        x = [T.empty(4, 8, 512, 64, dtype=T.bfloat16, device="cuda").requires_grad_() for _ in range(3)]
        scaled_dot_product_attention(*x, T.empty(*shape, dtype=dtype, device="cuda")).backward(T.empty_like(x[0]))
    ways = {family: [way["kernel"] for way in ways] for family, _, ways in met if family.startswith("attention")}
    assert ways.pop("attention_backward")[0] == "apart" and len(ways) == 3
    assert all(found[0] == first and "gluon" in found for found in ways.values())


@pytest.mark.parametrize("L, S, tile", [(49, 49, (64, 64)), (16, 40, (16, 64)), (5, 1, (16, 16)), (65, 49, None)])
def test_a_short_head_is_one_tile(L, S, tile):
    """Of windows of an image there are many, each with few rows and keys."""
    with driver.using(DryDriver(90)), tuner.trying_all() as met:
        q, k = [T.empty(64, 8, n, 32, dtype=T.bfloat16, device="cuda").requires_grad_() for n in (L, S)]
        scaled_dot_product_attention(q, k, k, T.empty(8, L, S, dtype=T.bfloat16, device="cuda")).sum().backward()
    firsts = {family: ways[0] for family, _, ways in met if family.endswith(("attention_forward", "_backward_q", "_backward_kv"))}
    assert len(firsts) == 3 and all((way["BLOCK_M"], way["BLOCK_N"]) == (tile or (64, 64)) for way in firsts.values())
    assert all((way["num_stages"] == 1) == (tile is not None) for way in firsts.values())
