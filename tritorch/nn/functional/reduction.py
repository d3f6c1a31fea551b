"""How losses are reduced."""
import warnings


def legacy_reduction(size_average, reduce, reduction="mean"):
    """The reduction meant by the arguments that came before `reduction`, or `reduction` if none is given."""
    if size_average is None and reduce is None:
        return reduction
    found = "none" if reduce is False else "sum" if size_average is False else "mean"
    warnings.warn(f"size_average and reduce args will be deprecated, please use reduction='{found}' instead.", UserWarning, stacklevel=3)
    return found


def reduced(loss, size_average, reduce, reduction):
    """The losses themselves, their mean or their sum."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return loss.mean() if reduction == "mean" else loss.sum()
