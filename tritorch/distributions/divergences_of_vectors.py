"""Divergences of normal vectors: (log det Σ_q / det Σ_p + tr Σ_q⁻¹Σ_p + (μ_q - μ_p)ᵀ Σ_q⁻¹ (μ_q - μ_p) - n) / 2."""
from tritorch.distributions.kl import register_kl
from tritorch.distributions.lowrank_multivariate_normal import LowRankMultivariateNormal
from tritorch.distributions.multivariate_normal import MultivariateNormal, mahalanobis
from tritorch.errors import check
from tritorch.linalg import solve_triangular
from tritorch.ops.triangles import diag_embed


def _trace(x):
    """tr x xᵀ."""
    return (x**2).sum((-2, -1))


def _halved(p, log_dets, trace, square):
    return 0.5 * (log_dets + trace + square - p.event_shape[0])


def _same_size(p, q):
    check(p.event_shape == q.event_shape, "kl_divergence", "vectors of one size", (p, q), error=ValueError)


@register_kl(MultivariateNormal, MultivariateNormal)
def _full_full(p, q):
    _same_size(p, q)
    ours, theirs = p._unbroadcasted_scale_tril, q._unbroadcasted_scale_tril
    trace = _trace(solve_triangular(theirs, ours, upper=False))
    return _halved(p, 2 * (q._half_log_det() - p._half_log_det()), trace, mahalanobis(theirs, q.loc - p.loc))


@register_kl(LowRankMultivariateNormal, MultivariateNormal)
def _low_full(p, q):
    _same_size(p, q)
    theirs = q._unbroadcasted_scale_tril
    trace = sum(_trace(solve_triangular(theirs, part, upper=False))
                for part in (p._unbroadcasted_cov_factor, diag_embed(p._unbroadcasted_cov_diag.sqrt())))
    return _halved(p, 2 * q._half_log_det() - p._log_det(), trace, mahalanobis(theirs, q.loc - p.loc))


@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def _full_low(p, q):
    _same_size(p, q)
    ours = p._unbroadcasted_scale_tril
    trace = _trace(ours * q._unbroadcasted_cov_diag.rsqrt().unsqueeze(-1)) - _trace(q._half() @ ours)
    return _halved(p, q._log_det() - 2 * p._half_log_det(), trace, q._mahalanobis(q.loc - p.loc))


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _low_low(p, q):
    _same_size(p, q)
    factor, diag, half = p._unbroadcasted_cov_factor, p._unbroadcasted_cov_diag, q._half()
    trace = (diag / q._unbroadcasted_cov_diag).sum(-1) + _trace(factor * q._unbroadcasted_cov_diag.rsqrt().unsqueeze(-1))
    trace = trace - _trace(half * diag.sqrt().unsqueeze(-2)) - _trace(half @ factor)
    return _halved(p, q._log_det() - p._log_det(), trace, q._mahalanobis(q.loc - p.loc))
