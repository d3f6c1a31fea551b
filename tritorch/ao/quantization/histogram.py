"""The observer that keeps a histogram and leaves outliers out of the range, where that makes the error of quantization smaller."""
import warnings

import numpy as np

from tritorch.ao.quantization.observer import EPS, UniformQuantizationObserverBase
from tritorch.autograd.modes import no_grad
from tritorch.dtype import iinfo, types
from tritorch.errors import check
from tritorch.ops import create
from tritorch.ops.extremes import amin_amax
from tritorch.ops.sorting import histc
from tritorch.schemes import is_per_channel, per_tensor_affine

FINER = 16                                                               # parts of a bin when a histogram gets another range
STEP = 1e-5                                                              # of the numbers, by which the search moves an end of the range


class HistogramObserver(UniformQuantizationObserverBase):
    """A histogram of all numbers that have been seen, in `bins` bins. `calculate_qparams` searches, from the whole range inwards, for the
    one whose squared error of quantization is smallest, as if numbers were spread evenly in their bins; infinities are passed over, with
    a warning. NotImplementedError for a scale for each channel.

    >>> import tritorch as torch
    >>> observer = torch.ao.quantization.HistogramObserver()
    >>> x = observer(torch.cat([torch.linspace(-1, 1, 1000000), torch.tensor([5.0])]))
    >>> observer.calculate_qparams()[0].item() < 0.01                     # 6 / 255 would be 0.024
    True
    """

    def __init__(self, bins=2048, dtype=types.quint8, qscheme=per_tensor_affine, reduce_range=False, quant_min=None, quant_max=None,
                 factory_kwargs=None, eps=EPS, is_dynamic=False, **kwargs):
        name = "HistogramObserver"
        check(not is_per_channel(qscheme), name, "a scheme with one scale for a tensor", qscheme, error=NotImplementedError)
        check(not is_dynamic, name, "scales that are not found anew each time", "is_dynamic=True", error=NotImplementedError)
        super().__init__(dtype=dtype, qscheme=qscheme, reduce_range=reduce_range, quant_min=quant_min, quant_max=quant_max,
                         factory_kwargs=factory_kwargs, eps=eps, is_dynamic=is_dynamic, **kwargs)
        self.bins, self.dst_nbins = bins, 2 ** iinfo(dtype).bits
        self.register_buffer("histogram", create.zeros(bins))
        self.register_buffer("min_val", create.tensor(float("inf")))
        self.register_buffer("max_val", create.tensor(float("-inf")))

    @no_grad()
    def forward(self, x_orig):
        """Add the numbers of a tensor, which is returned."""
        x = x_orig.detach().reshape(-1)
        if x.numel() == 0:
            return x_orig
        low, high = (v.item() for v in amin_amax(x, (0,)))
        if low == -np.inf or high == np.inf:
            warnings.warn("HistogramObserver: expected finite numbers, got infinities, which are passed over", stacklevel=2)
            x = x[x.abs() != float("inf")]
            if x.numel() == 0:
                return x_orig
            low, high = (v.item() for v in amin_amax(x, (0,)))
        old_low, old_high = self.min_val.item(), self.max_val.item()
        low, high, first = min(low, old_low), max(high, old_high), old_low == np.inf or old_high == -np.inf
        new = histc(x.to(self.histogram.dtype), self.bins, low, high)
        if not first:
            new = new + (self.histogram if (low, high) == (old_low, old_high) else self._moved(old_low, old_high, low, high))
        self.histogram.copy_(new)
        self.min_val.fill_(low)
        self.max_val.fill_(high)
        return x_orig

    def _moved(self, old_low, old_high, low, high):
        """The histogram so far in bins of another range."""
        kept = self.histogram.cpu().numpy()
        if old_low == old_high:
            moved = np.zeros_like(kept)
            moved[min(int((old_low - low) / (high - low) * self.bins), self.bins - 1)] = kept.sum()
        else:
            width = np.float32((old_high - old_low) / (self.bins * FINER))
            middles = np.linspace(old_low, old_high, self.bins * FINER + 1, dtype=np.float32)[:-1] + np.float32(0.5) * width
            place = np.searchsorted(np.linspace(low, high, self.bins + 1, dtype=np.float32), middles, side="right") - 1
            moved = np.bincount(place.clip(0, self.bins - 1), np.repeat(kept, FINER) / FINER, self.bins)
        return create.tensor(moved, dtype=self.histogram.dtype, device=self.histogram.device)

    def _error(self, counts, first, last):
        """The squared error of quantization if the range were from the bin `first` to the bin `last`."""
        width = (self.max_val.item() - self.min_val.item()) / self.bins
        step = width * (last - first + 1) / self.dst_nbins
        if step == 0.0:
            return 0.0
        begin = (np.arange(self.bins) - first) * width
        end = begin + width
        at_begin, at_end = (np.floor(edge / step).clip(0, self.dst_nbins - 1) for edge in (begin, end))

        def squares(start, stop):
            return counts / width * (stop**3 - start**3) / 3

        whole = (at_end - at_begin - 1) * squares(-step / 2, step / 2)   # steps that lie in one bin
        return float((squares(begin - (at_begin + 0.5) * step, step / 2) + whole + squares(-step / 2, end - (at_end + 0.5) * step)).sum())

    def _best(self):
        """(min, max) of the range with the smallest error that is found when the ends move inwards."""
        counts = self.histogram.cpu().numpy().astype(np.float64)
        sums, total = counts.cumsum(), counts.sum()
        below, above, first, last, best = 0.0, 1.0, 0, self.bins - 1, np.inf
        while below < above:
            left = max(first, min(int(np.searchsorted(sums, (below + STEP) * total)), last))
            right = last
            while right > first and sums[right] > (above - STEP) * total:
                right -= 1
            moved = (left, last) if left - first > last - right else (first, right)
            if left - first > last - right:
                below += STEP
            else:
                above -= STEP
            if moved == (first, last):
                continue
            error = self._error(counts, *moved)
            if error > best:
                break
            best, (first, last) = error, moved
        width = (self.max_val - self.min_val) / self.bins
        return self.min_val + width * first, self.min_val + width * (last + 1)

    def calculate_qparams(self):
        """(scale, zero point) of the range with the smallest error; 1 and 0, with a warning, where nothing has been seen."""
        if self.min_val.item() == np.inf or self.max_val.item() == -np.inf:
            warnings.warn("HistogramObserver: expected numbers to have been seen, got none; scale 1 and zero point 0", stacklevel=2)
            return create.tensor([1.0], device=self.min_val.device), create.tensor([0], device=self.min_val.device)
        return self._calculate_qparams(*self._best())

    def extra_repr(self):
        return f"min_val={self.min_val}, max_val={self.max_val}"
