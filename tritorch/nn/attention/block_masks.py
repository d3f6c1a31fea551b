"""Which blocks of scores a mask leaves: BlockMask of `flex_attention`, and masks as functions of places."""
import contextlib
import inspect
import itertools
import weakref
from types import CellType, FunctionType

from tritorch import cuda
from tritorch.device import as_device
from tritorch.dtype import types
from tritorch.errors import check
from tritorch.func import vmap
from tritorch.ops import compare, create, shaping
from tritorch.ops.padding import pad
from tritorch.shape import cdiv
from tritorch.tensor import Tensor

BLOCK = 128
FLAWLESS = (type(None), bool, int, float, str)                           # what a function may read without its answer ever changing
ALL_KEYS = (None, None)


def noop_mask(batch, head, token_q, token_kv):
    """Every row may attend to every key."""
    return batch.new_ones(batch.shape, dtype=types.bool)


def and_masks(*mask_mods):
    """The mask of what all of these allow."""
    return _joined("and_masks", mask_mods, lambda x, y: x & y, True)


def or_masks(*mask_mods):
    """The mask of what any of these allows."""
    return _joined("or_masks", mask_mods, lambda x, y: x | y, False)


def _joined(name, mask_mods, join, neutral):
    check(all(callable(m) for m in mask_mods), name, "functions of (batch, head, q_idx, kv_idx)", mask_mods, error=RuntimeError)

    def mask(b, h, q_idx, kv_idx):
        result = b.new_full((), neutral, dtype=types.bool)
        for m in mask_mods:
            result = join(result, m(b, h, q_idx, kv_idx))
        return result

    return mask


def everywhere(mod, places, score=None):
    """What a function of (score,) batch, head, row and key says of all of them, (B, H, Q, K): `places` are their numbers.

    It is called once, with tensors that are broadcast, if that gives what it says of single places, at some of which one looks when a
    function is met the first time. If not, `vmap` calls it for batches and heads (`bias[h][q - k]`), or for rows too (`table[q][k]`),
    or at last for every place, which is always right, and for `if q > 3` takes as long as a loop does.
    """
    looped = _met(mod)
    if looped is not None or cuda.is_current_stream_capturing():         # then nobody may look
        return _over(mod, 4 if looped is None else looped, places, score)
    _settle(places)                                                      # a wrong index of an earlier call is that one's
    for looped in (0, 2, 3):
        try:
            found = _over(mod, looped, places, score)
            _settle(places)
            if _says_so_of_single_places(mod, places, score, found):
                _note(mod, looped)
                return found
        except Exception:                                                # what is wrong with the function the last way says
            with contextlib.suppress(Exception):
                _settle(places)
    found = _over(mod, 4, places, score)
    _note(mod, 4)
    return found


def _over(mod, looped, places, score):
    """The answers of calls for each number of the first dims, the others broadcast."""
    rest, score = range(looped, 4), () if score is None else (score,)

    def call(*args):
        return mod(*args).expand([len(places[d]) for d in rest])

    for d in range(looped - 1, -1, -1):
        call = vmap(call, in_dims=(*[0 for _ in score], *[0 if k == d else None for k in range(4)]))
    return call(*score, *places[:looped], *[places[d].view([-1 if k == d else 1 for k in rest]) for d in rest])


def _settle(places):
    """Have the device tell of wrong indices."""
    if places[0].is_cuda:
        cuda.synchronize(places[0].device)


def _says_so_of_single_places(mod, places, score, found):
    """Whether the function gives the same for some of the first, last and middle places alone."""
    if not found.numel():
        return True
    ends = [(0, len(x) - 1) for x in places]
    middle = tuple([(2 * last + n) // 3 for n, (_, last) in enumerate(ends)])
    for at in [*[*itertools.product(*ends)][::3], middle]:
        alone = mod(*(() if score is None else (score[at],)), *[x[n] for x, n in zip(places, at)])
        if alone.numel() != 1 or not alone.reshape(()).allclose(found[at], rtol=1e-3, atol=1e-5, equal_nan=True):
            return False
    return True


def _met(mod):
    """Over how many dims a function has to be called one by one, None if that is not known. While a graph is captured, what another
    function of the same code takes is taken."""
    key = mod if not cuda.is_current_stream_capturing() else getattr(mod, "__code__", mod)
    try:
        return _ways.get(key)
    except TypeError:                                                    # it cannot be a key
        return None


def _note(mod, looped):
    for key in (mod, getattr(mod, "__code__", mod)):
        with contextlib.suppress(TypeError):
            _ways[key] = looped


_ways = weakref.WeakKeyDictionary()                                      # function or code -> over how many dims it is called one by one


def places_of(B, H, Q, K, device):
    """The numbers of batches, heads, rows and keys."""
    return [create.arange(n, device=device) for n in (B, H, Q, K)]


def create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device=None):
    """The bool mask (B, H, Q_LEN, KV_LEN) of a mask function (batch, head, q_idx, kv_idx), or of a score function (score, batch, head,
    q_idx, kv_idx), whose scores of -inf are masked. B and H may be None: 1.

    >>> import tritorch as torch; from tritorch.nn.attention.flex_attention import create_mask
    >>> create_mask(lambda b, h, q, k: q >= k, None, None, 2, 3, "cpu").int()
    tensor([[[[1, 0, 0],
              [1, 1, 0]]]], dtype=tritorch.int32)
    """
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    device = as_device(device if device is not None else "cuda" if cuda.is_available() else "cpu")
    count = sum(p.default is inspect.Parameter.empty for p in inspect.signature(mod_fn).parameters.values())
    check(count in (4, 5), "create_mask", "a function of 4 or 5 arguments", count, error=AssertionError)
    if count == 4:
        return everywhere(mod_fn, places_of(*sizes, device)).to(types.bool)
    return everywhere(mod_fn, places_of(*sizes, device), create.zeros(sizes, device=device)) != float("-inf")


def create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN, device=None, BLOCK_SIZE=BLOCK, _compile=False, separate_full_blocks=True):
    """The BlockMask of a mask function (batch, head, q_idx, kv_idx) for `flex_attention`. B and H may be None: one mask for all.

    >>> import tritorch as torch; from tritorch.nn.attention.flex_attention import create_block_mask
    >>> m = create_block_mask(lambda b, h, q, k: q >= k, None, None, 64, 64, "cpu", BLOCK_SIZE=16); m.shape, m.sparsity()
    ((1, 1, 64, 64), 37.5)
    """
    rows, keys = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    mask = create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device)
    blocks = pad(mask, (0, -KV_LEN % keys, 0, -Q_LEN % rows)).unflatten(3, (-1, keys)).unflatten(2, (-1, rows))
    found = blocks.sum((3, 5))
    full = found == rows * keys if separate_full_blocks else found < 0
    part, full = [_ordered(x) for x in ((found > 0) & ~full, full)]
    made = BlockMask.from_kv_blocks(*part, *(full if separate_full_blocks else ()), BLOCK_SIZE=(rows, keys), mask_mod=mask_mod,
                                    seq_lengths=(Q_LEN, KV_LEN))
    made._known = _read_by(mask_mod), mask
    return made


def _ordered(dense):
    """(how many blocks of each row are set, their numbers in front of those of the others)."""
    order = dense.to(types.int8).argsort(dim=-1, descending=True, stable=True)
    return dense.sum(-1).to(types.int32), order.to(types.int32)


def _unordered(counts, indices):
    """What `_ordered` was made of."""
    set_ = create.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    return create.zeros(indices.shape, dtype=types.bool, device=indices.device).scatter(-1, indices.long(), set_)


def _read_by(mod):
    """The tensors that a function reads, with their versions; None where it may read what nobody can hold against its value now."""
    seen, stack = [], [mod]
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            seen.append((value, value._version))
        elif isinstance(value, FunctionType):
            names = {*value.__code__.co_names} & {*value.__globals__}
            stack += [*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            stack += [value.__globals__[n] for n in names if not _is_library(value.__globals__[n])]
        elif isinstance(value, CellType):
            stack.append(value.cell_contents)
        elif type(value) is tuple:
            stack += value
        elif type(value) not in FLAWLESS:
            return None
    return seen


def _is_library(value):
    """Whether a global is a module or something of tritorch, which does not change."""
    return inspect.ismodule(value) or getattr(value, "__module__", "").partition(".")[0] in ("tritorch", "builtins", "math")


def _refuses(b, h, q_idx, kv_idx):
    raise RuntimeError("BlockMask: expected a whole mask, got a part, whose mask function is for other places; use from_kv_blocks")


class BlockMask:
    """Which blocks of BLOCK_SIZE (rows, keys) of scores a mask leaves, and the function `mask_mod` that says it of each score.

    kv_num_blocks (B, H, rows) counts the blocks of each row of blocks in which it leaves some scores, kv_indices (B, H, rows, columns)
    has their numbers in front; full_kv_num_blocks and full_kv_indices those of which it leaves all. q_num_blocks and so on tell the same
    by columns. `shape` is (B, H, Q_LEN, KV_LEN). Parts, `mask[batch, head, rows]`, tell of blocks, but cannot be attended through.
    """

    def __init__(self, seq_lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, q_num_blocks, q_indices,
                 full_q_num_blocks, full_q_indices, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=noop_mask):
        check(kv_indices.ndim >= 2, "BlockMask", "kv_indices of at least 2 dims", kv_indices.shape)
        check((full_kv_num_blocks is None) == (full_kv_indices is None), "BlockMask",
              "both full_kv_num_blocks and full_kv_indices, or neither", full_kv_num_blocks, full_kv_indices, error=AssertionError)
        self.seq_lengths, self.BLOCK_SIZE, self.mask_mod = tuple(seq_lengths), tuple(BLOCK_SIZE), mask_mod
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = q_num_blocks, q_indices
        self.full_q_num_blocks, self.full_q_indices = full_q_num_blocks, full_q_indices
        self._known = self._window = None

    @classmethod
    def from_kv_blocks(cls, kv_num_blocks, kv_indices, full_kv_num_blocks=None, full_kv_indices=None, BLOCK_SIZE=BLOCK, mask_mod=None,
                       seq_lengths=None, compute_q_blocks=True):
        """Of the blocks of rows; those of columns follow from them."""
        check(kv_indices.ndim >= 2, "BlockMask", "kv_indices of at least 2 dims", kv_indices.shape)
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
        by_columns = [None] * 4
        if compute_q_blocks:
            by_columns[:2] = _ordered(_unordered(kv_num_blocks, kv_indices).mT)
            if full_kv_indices is not None and full_kv_num_blocks is not None:
                by_columns[2:] = _ordered(_unordered(full_kv_num_blocks, full_kv_indices).mT)
        rows, columns = kv_indices.shape[-2:]
        return cls(seq_lengths or (rows * size[0], columns * size[1]), kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices,
                   *by_columns, size, noop_mask if mask_mod is None else mask_mod)

    @property
    def shape(self):
        """(B, H, Q_LEN, KV_LEN)."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def as_tuple(self, flatten=True):
        """All of it: lengths, blocks by rows and columns, BLOCK_SIZE and mask_mod."""
        size, lengths = (self.BLOCK_SIZE, self.seq_lengths) if flatten else ((self.BLOCK_SIZE,), (self.seq_lengths,))
        return (*lengths, self.kv_num_blocks, self.kv_indices, self.full_kv_num_blocks, self.full_kv_indices, self.q_num_blocks,
                self.q_indices, self.full_q_num_blocks, self.full_q_indices, *size, self.mask_mod)

    def numel(self):
        """How many scores there are, masked or not."""
        count = 1
        for n in self.shape:
            count *= n
        return count

    def sparsity(self):
        """Percent of the scores that lie in blocks of which the mask leaves nothing."""
        left = self.kv_num_blocks.sum() + (0 if self.full_kv_num_blocks is None else self.full_kv_num_blocks.sum())
        return 100 * (1 - left.item() * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1] / self.numel())

    def to_dense(self):
        """(B, H, rows, columns): whether the mask leaves something of a block."""
        part = _unordered(self.kv_num_blocks, self.kv_indices)
        return part if self.full_kv_num_blocks is None else part | _unordered(self.full_kv_num_blocks, self.full_kv_indices)

    def to(self, device):
        """The blocks on a device; the tensors that mask_mod reads stay where they are."""
        blocks = self.as_tuple()[2:10]
        return BlockMask(self.seq_lengths, *[x if x is None else x.to(device) for x in blocks], self.BLOCK_SIZE, self.mask_mod)

    def __getitem__(self, index):
        index = (*(index if isinstance(index, tuple) else (index,)), *[slice(None)] * 3)[:3]
        index = tuple([slice(i, i + 1 or None) if isinstance(i, int) else i for i in index])
        blocks = [x if x is None else x[index] for x in self.as_tuple()[2:6]]
        return BlockMask.from_kv_blocks(*blocks, self.BLOCK_SIZE, _refuses, self.seq_lengths, self.q_indices is not None)

    def _adjust(self, new_q_len, new_kv_len):
        """The upper left corner, for other lengths."""
        rows, columns = cdiv(new_q_len, self.BLOCK_SIZE[0]), cdiv(new_kv_len, self.BLOCK_SIZE[1])
        blocks = []
        for counts, indices in ((self.kv_num_blocks, self.kv_indices), (self.full_kv_num_blocks, self.full_kv_indices)):
            blocks += [None, None] if counts is None else _ordered(_unordered(counts, indices)[..., :rows, :columns])
        return BlockMask.from_kv_blocks(*blocks, self.BLOCK_SIZE, self.mask_mod, (new_q_len, new_kv_len), self.q_indices is not None)

    def __repr__(self):
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"

    def __str__(self):
        return f"{repr(self)[:-1]},\n{self.to_string().strip()}\n)"

    def to_string(self, grid_size=(20, 20), limit=4):
        """A picture of each mask, at most `limit` of them: full, empty, and in between, in at most grid_size rows and columns (-1: all)."""
        dense = self.to_dense().float()
        grid = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        down, right = [1 if most == -1 else max(cdiv(n, most), 1) for n, most in zip(dense.shape[-2:], grid)]
        found, masks = [], list(itertools.product(*map(range, dense.shape[:-2])))
        for place in masks[:limit]:
            share = [[part.mean().item() for part in row.split(right, 1)] for row in dense[place].split(down, 0)]
            found.append("\n".join([str(place), *["".join(("█" if s == 1 else "░" if s else " ") * 2 for s in row) for row in share]]))
        return "\n\n".join([*found, *(["..."] if len(masks) > limit else [])])

    # -------------------------------------------------------------- what attention asks
    def whole(self, batch, heads):
        """(the bool mask that broadcasts to (batch, heads, Q_LEN, KV_LEN), or None; the window that it is): what was found out when the
        mask was made holds as long as the tensors that its function reads were not written."""
        if self._known is None or self._known[0] is None or any(x._version != version for x, version in self._known[0]):
            B, H = self.kv_indices.shape[:2]
            mask = create_mask(self.mask_mod, *([B, H] if self._known else [batch, heads]), *self.seq_lengths, self.kv_indices.device)
            return (mask if self._known else mask & self._of_blocks()), ALL_KEYS
        mask = self._known[1]
        if self._window is None:
            if mask.is_cuda and cuda.is_current_stream_capturing():
                return mask, ALL_KEYS
            self._window = _window_of(mask)
        return (None, self._window) if self._window else (mask, ALL_KEYS)

    def _of_blocks(self):
        """The blocks as a mask of scores."""
        (rows, keys), (Q, K) = self.BLOCK_SIZE, self.seq_lengths
        return shaping.repeat_interleave(shaping.repeat_interleave(self.to_dense(), rows, -2), keys, -1)[..., :Q, :K]


def _window_of(mask):
    """(left, right) such that row i may attend to the keys i - left … i + right, if the mask is just that; else False. Attention then
    leaves out the blocks beyond, and reads no mask."""
    B, H, Q, K = mask.shape
    if (B, H) != (1, 1) or not Q or not K:
        return False
    first, last = mask[0, 0, 0].cpu(), mask[0, 0, -1].cpu()
    if not first[0].item():
        return False
    right = int(first.sum().item()) - 1
    left = Q - 1 - int(last.to(types.int8).argmax().item()) if last.any().item() else Q
    distance = create.arange(K, device=mask.device) - create.arange(Q, device=mask.device).unsqueeze(1)
    if not compare.equal(mask[0, 0], (distance >= -left) & (distance <= right)):
        return False
    return None if left >= Q - 1 else left, None if right >= K - 1 else right
