"""Which blocks of the scores of attention are computed, under the name of torch.nn.attention.flex_attention.BlockMask."""
import itertools
import math

from tritorch.dtype import types
from tritorch.errors import check
from tritorch.func import vmap
from tritorch.nn.functional import pad
from tritorch.ops.create import arange, zeros
from tritorch.ops.sorting import argsort

SIZE = 128                                                               # of a block, unless it is chosen
TENSORS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices", "full_q_num_blocks",
           "full_q_indices")


def noop_mask(batch, head, token_q, token_kv):
    """A mask that hides nothing."""
    return batch.new_ones((), dtype=types.bool)


def sliced_mask(batch, head, token_q, token_kv):
    """Stands for the mask of a part of a BlockMask, which other indices belong to."""
    raise RuntimeError("BlockMask: expected the function of a whole mask, got that of a part; make a BlockMask of the part with its own")


def over_scores(mod, scores=False):
    """A function of single indices (b, h, q, kv), of one score before them too, as one of ranges of indices and of all scores."""
    first = (0,) if scores else ()
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        mod = vmap(mod, in_dims=first + dims, out_dims=0)
    return mod


def ordered(dense):
    """The marked columns of every row, as their number and their indices, before those of the others. Both int32."""
    dense = dense.to(types.int32)
    return dense.sum(-1, dtype=types.int32), argsort(dense, dim=-1, descending=True, stable=True).to(types.int32)


def marked(num_blocks, indices, columns):
    """`ordered`, undone: rows in which the first `num_blocks` of `indices` are marked, of so many columns."""
    chosen = arange(indices.shape[-1], device=indices.device) < num_blocks.unsqueeze(-1)
    where = indices.long().where(chosen, columns)                        # what is not chosen goes to a column more, which is left out
    made = zeros((*indices.shape[:-1], columns + 1), dtype=types.int32, device=indices.device)
    return made.scatter(-1, where, 1)[..., :columns]


def blocks_of(mask, rows, columns, separate):
    """Which blocks of a mask are kept in part and which as a whole (None unless `separate`: then the first are all that are kept)."""
    b, h, q, kv = mask.shape
    mask = pad(mask, (0, -kv % columns, 0, -q % rows))
    tiles = mask.reshape(b, h, mask.shape[2] // rows, rows, mask.shape[3] // columns, columns)
    count = tiles.sum((3, 5))
    if not separate:
        return count > 0, None
    return (count > 0) & (count < rows * columns), count == rows * columns


class BlockMask:
    """Of attention, for each row of blocks of queries the blocks of keys that count: in part, as `mask_mod` decides, or as a whole.

    `create_block_mask` makes it of a function, `from_kv_blocks` of indices. kv_num_blocks (…, rows): how many blocks of a row count in
    part; kv_indices (…, rows, columns): those first; full_…: the same of whole blocks; q_…: the same from the side of keys. All int32.

    >>> from tritorch.nn.attention.flex_attention import create_block_mask
    >>> mask = create_block_mask(lambda b, h, q, kv: q >= kv, 1, 1, 16, 16, device="cpu", BLOCK_SIZE=4)
    >>> mask.shape, mask.sparsity(), mask.to_dense()[0, 0].tolist()
    ((1, 1, 16, 16), 37.5, [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    """

    dq_write_order = dq_write_order_full = dq_kv_order = dq_kv_order_spt = None          # PyTorch's, for a kernel that is not here

    def __init__(self, seq_lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, q_num_blocks, q_indices,
                 full_q_num_blocks, full_q_indices, BLOCK_SIZE=(SIZE, SIZE), mask_mod=noop_mask):
        check(kv_indices.dim() >= 2, "BlockMask", "kv_indices of at least 2 dims", kv_indices.dim())
        both = "both, the numbers of whole blocks and their indices, or neither"
        for name, a, b in (("kv", full_kv_num_blocks, full_kv_indices), ("q", full_q_num_blocks, full_q_indices)):
            check((a is None) == (b is None), "BlockMask", both, name, error=AssertionError)
        self.seq_lengths, self.kv_num_blocks, self.kv_indices = seq_lengths, kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = q_num_blocks, q_indices
        self.full_q_num_blocks, self.full_q_indices = full_q_num_blocks, full_q_indices
        self.BLOCK_SIZE, self.mask_mod = BLOCK_SIZE, mask_mod

    @classmethod
    def from_kv_blocks(cls, kv_num_blocks, kv_indices, full_kv_num_blocks=None, full_kv_indices=None, BLOCK_SIZE=SIZE, mask_mod=None,
                       seq_lengths=None, compute_q_blocks=True):
        """The mask whose blocks of keys these are; those of queries follow from them, if `compute_q_blocks`."""
        check(kv_indices.dim() >= 2, "BlockMask", "kv_indices of at least 2 dims", kv_indices.dim())
        check((full_kv_num_blocks is None) == (full_kv_indices is None), "BlockMask",
              "both, the numbers of whole blocks and their indices, or neither", "one of them", error=AssertionError)
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        rows, columns = kv_indices.shape[-2:]

        def other_side(num_blocks, indices):
            return (None, None) if num_blocks is None or not compute_q_blocks else ordered(marked(num_blocks, indices, columns).mT)

        lengths = (rows * size[0], columns * size[1]) if seq_lengths is None else seq_lengths
        return cls(lengths, kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices, *other_side(kv_num_blocks, kv_indices),
                   *other_side(full_kv_num_blocks, full_kv_indices), BLOCK_SIZE=size, mask_mod=mask_mod or noop_mask)

    def as_tuple(self, flatten=True):
        """All that it is made of, with sizes one by one or, unless `flatten`, as pairs."""
        lengths, size = (self.seq_lengths, self.BLOCK_SIZE) if flatten else ((self.seq_lengths,), (self.BLOCK_SIZE,))
        order = (self.dq_write_order, self.dq_write_order_full, self.dq_kv_order, self.dq_kv_order_spt)
        return *lengths, *(getattr(self, name) for name in TENSORS), *order, *size, self.mask_mod

    @property
    def shape(self):
        """(batches, heads, queries, keys)."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def numel(self):
        """The number of scores, those that do not count included."""
        return math.prod(self.shape)

    def sparsity(self):
        """The percentage of scores in blocks that do not count."""
        count = self.kv_num_blocks.sum() + (0 if self.full_kv_num_blocks is None else self.full_kv_num_blocks.sum())
        return 100 * (1 - count.item() * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1] / self.numel())

    def to_dense(self):
        """1 for each block that counts, 0 for the others: (…, rows, columns), int32."""
        part = marked(self.kv_num_blocks, self.kv_indices, self.kv_indices.shape[-1])
        if self.full_kv_num_blocks is None:
            return part
        return part | marked(self.full_kv_num_blocks, self.full_kv_indices, self.full_kv_indices.shape[-1])

    def to(self, device):
        """The same on a device."""
        moved = (None if x is None else x.to(device) for x in (getattr(self, name) for name in TENSORS))
        return BlockMask(self.seq_lengths, *moved, BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod)

    def __getitem__(self, index):
        """The part for some batches, heads and rows of blocks; no dim goes away. Its mask_mod raises RuntimeError."""
        index = ((index,) if not isinstance(index, tuple) else index) + (slice(None),) * 3
        index = tuple((slice(i, i + 1 or None) if -n <= i < 0 else slice(i, i + 1)) if isinstance(i, int) else i
                      for i, n in zip(index, self.kv_num_blocks.shape[:3]))
        parts = (None if x is None else x[index] for x in (getattr(self, name) for name in TENSORS[:4]))
        return BlockMask.from_kv_blocks(*parts, BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=sliced_mask, seq_lengths=self.seq_lengths,
                                        compute_q_blocks=self.q_indices is not None)

    def _adjust(self, new_q_len, new_kv_len):
        """The upper left part for so many queries and keys, with the same mask_mod."""
        rows, columns = -(-new_q_len // self.BLOCK_SIZE[0]), -(-new_kv_len // self.BLOCK_SIZE[1])

        def cut(num_blocks, indices):
            if num_blocks is None:
                return None, None
            num_blocks, indices = num_blocks[:, :, :rows].clamp(max=columns), indices[:, :, :rows, :columns]
            return (indices < num_blocks.unsqueeze(-1)).sum(-1).to(types.int32), indices

        return BlockMask.from_kv_blocks(*cut(self.kv_num_blocks, self.kv_indices), *cut(self.full_kv_num_blocks, self.full_kv_indices),
                                        BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod, seq_lengths=(new_q_len, new_kv_len),
                                        compute_q_blocks=self.q_indices is not None)

    def __repr__(self):
        shapes = "".join(f"    {name}={None if getattr(self, name) is None else getattr(self, name).shape!r},\n" for name in TENSORS)
        mod = getattr(self.mask_mod, "__name__", self.mask_mod)
        return f"BlockMask(\n{shapes}    BLOCK_SIZE={self.BLOCK_SIZE},\n    shape={self.shape},\n    sparsity={self.sparsity():.2f}%,\n" \
               f"    mask_mod={mod}\n)"

    def __str__(self):
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%, \n{self.to_string().strip()}\n)"

    def to_string(self, grid_size=(20, 20), limit=4):
        """A picture of at most `limit` masks, of at most `grid_size` signs (-1: one a block): all, some or none of their blocks count."""
        dense, lines = self.to_dense().cpu(), []
        rows, columns = dense.shape[-2:]
        most = (rows, columns) if grid_size == -1 else (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        down, right = (max(1, -(-n // m)) for n, m in zip((rows, columns), most))
        for k, where in enumerate(itertools.product(*map(range, dense.shape[:-2]))):
            if k == limit:
                lines += ["...", "To print out more, set BlockMask.to_string(limit=N)",
                          "You can also index (BlockMask[batch, head]) to choose a specific batch or head"]
                break
            parts = [[dense[where][r:r + down, c:c + right].float().mean().item() for c in range(0, columns, right)]
                     for r in range(0, rows, down)]
            signs = ("".join(2 * (" " if p == 0 else "█" if p == 1 else "░") for p in row) + "\n" for row in parts)
            lines.append(f"{where}\n" + "".join(signs))
        return "\n".join(lines)


