"""In which tiles attention may be computed, and which are tried first."""
LONG = 2048                                                              # many rows and keys

# BLOCK_M, BLOCK_N, num_warps, num_stages for head sizes up to a bound, by what is multiplied: "half" are 16-bit types, "tf32" float32 on
# the matrix units, "ieee" and "fp64" are not. The first is the guess for a problem that was not measured. Before Hopper all keys and values
# of a tile stay in registers when they are rounded to TF32: 64 keys of 64 numbers spill 3.5 KB a thread there, 32 none.
TILES = {
    "forward": {
        "half": {64: ((128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3), (64, 64, 4, 3), (64, 64, 4, 4), (64, 64, 4, 2), (64, 128, 4, 2)),
                 128: ((128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3)),
                 256: ((64, 64, 8, 2), (128, 64, 8, 2), (64, 32, 8, 2), (64, 64, 4, 2))},
        "half by TMA": {64: ((64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3)),
                        128: ((128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2)), 256: ((64, 32, 4, 3), (64, 64, 8, 2), (64, 64, 4, 2))},
        "tf32": {64: ((64, 64, 4, 2), (128, 32, 8, 2)), 128: ((64, 32, 4, 2), (64, 64, 8, 2)), 256: ((32, 32, 8, 1),)},
        "ieee": {64: ((64, 32, 8, 2), (32, 32, 8, 2)), 128: ((32, 32, 8, 1),), 256: ((32, 32, 8, 1),)},
        "fp64": {64: ((32, 16, 4, 2),), 128: ((32, 16, 8, 2),), 256: ((16, 16, 8, 1),)},
    },
    "split": {                                                           # at most so many rows
        "half": {64: ((64, 64, 4, 4), (64, 64, 4, 3)), 128: ((64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 2), (64, 128, 8, 2)),
                 256: ((64, 32, 4, 3), (64, 32, 4, 2))},
        "tf32": {64: ((32, 32, 4, 3),), 128: ((16, 32, 8, 2), (16, 16, 8, 2)), 256: ((16, 16, 4, 2),)},
        "ieee": {64: ((32, 32, 4, 3),), 128: ((16, 32, 8, 2), (16, 16, 8, 2)), 256: ((16, 16, 4, 2),)},
        "fp64": {64: ((16, 16, 4, 2),), 128: ((16, 16, 4, 2),), 256: ((16, 16, 4, 1),)},
    },
    "backward_q": {
        "half": {64: ((64, 64, 4, 3), (128, 64, 8, 2), (128, 32, 4, 2)), 128: ((128, 64, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2)),
                 256: ((64, 32, 4, 2), (64, 32, 8, 2), (32, 32, 8, 2))},
        "tf32": {64: ((64, 32, 4, 2), (64, 64, 8, 2)), 128: ((64, 32, 8, 2), (32, 32, 4, 2)), 256: ((32, 32, 8, 1), (16, 16, 8, 2))},
        "ieee": {64: ((32, 32, 8, 2),), 128: ((16, 32, 8, 2), (32, 16, 8, 2)), 256: ((16, 16, 8, 2),)},
        "fp64": {64: ((16, 16, 8, 1),), 128: ((16, 16, 4, 2),), 256: ((16, 16, 8, 2),)},
    },
    "backward": {                                                        # together; larger heads would not stay in registers
        "half": {64: ((64, 64, 4, 2), (64, 128, 8, 2), (64, 128, 8, 3)), 128: ((64, 64, 8, 2), (32, 64, 8, 2))},
        "tf32": {64: ((32, 64, 4, 2), (64, 64, 8, 2)), 128: ((32, 32, 4, 2), (32, 64, 8, 2))},
        "ieee": {64: ((16, 32, 8, 2), (32, 32, 8, 2)), 128: ((16, 32, 8, 1),)},
        "fp64": {64: ((16, 16, 8, 1),), 128: ((16, 16, 8, 1),)},
    },
    "backward_kv": {
        "half": {64: ((64, 64, 4, 3), (64, 128, 8, 2), (64, 128, 8, 3)), 128: ((64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 8, 2)),
                 256: ((64, 64, 8, 2), (32, 64, 8, 2), (16, 64, 8, 2))},
        "tf32": {64: ((32, 64, 4, 2), (64, 64, 8, 2)), 128: ((32, 32, 4, 2), (32, 64, 8, 2)), 256: ((32, 32, 8, 1), (16, 16, 8, 1))},
        "tf32 sm_80": {64: ((32, 32, 4, 2), (64, 32, 4, 2)), 128: ((32, 32, 8, 2), (32, 64, 8, 2)), 256: ((32, 32, 8, 1), (16, 16, 8, 1))},
        "ieee": {64: ((32, 32, 8, 2),), 128: ((32, 32, 8, 1),), 256: ((16, 16, 8, 1),)},
        "fp64": {64: ((16, 16, 8, 1),), 128: ((16, 16, 4, 1),), 256: ((16, 16, 8, 1),)},
    },
    "bias": {
        "half": {64: ((64, 64, 4, 1), (64, 64, 4, 2)), 128: ((64, 64, 8, 2), (64, 64, 4, 1)), 256: ((32, 32, 8, 1),)},
        "tf32": {64: ((64, 32, 8, 2),), 128: ((32, 32, 8, 2),), 256: ((32, 32, 8, 1),)},
        "ieee": {64: ((32, 32, 8, 2),), 128: ((16, 32, 8, 1),), 256: ((16, 16, 8, 1),)},
        "fp64": {64: ((16, 16, 8, 1),), 128: ((16, 16, 8, 1),), 256: ((16, 16, 8, 1),)},
    },
}
# The same for keys in one piece, where the heads alone are as many programs as there are processors: no second kernel joins anything, and
# what one program a processor has under way is as much as two have.
WHOLE = {128: ((64, 64, 4, 6), (64, 128, 8, 3))}
# The three gradients together: which tiles come first, and whether the rows' product is a step behind, so that no warp group waits for the
# other.
ORDERS = {"BEHIND": 1, "BESIDE": 1}, {"BEHIND": 1}, {"BESIDE": 1}
# By the columns that a head has in shared memory, where TMA fills it up with zeros. The whole tile is GROUPS · ROWS, 2 · ROWS backward.
# With HALVES rows pass by half of a block of keys on the diagonal. LEAN: a loop carries its weights as words of two, and no warp of a group
# waits for the others before a slot is given back; of GPT-2's 32 sequences 104 µs are predicted, not 109, of 4096 rows 474, not 523. Four
# groups are what fits in registers then: 102 and 471.
# Forward, groups of 128 rows take 1.2 times as long on an H100: ptxas spills 100 bytes of theirs.
GLUON = {
    "forward": {**dict.fromkeys((32, 64), [*[{"GROUPS": groups, "ROWS": 64, "BLOCK_N": keys, "STAGES": stages}
                                             for groups, keys, stages in ((2, 128, 3), (3, 64, 4), (2, 64, 4))],
                                           {"GROUPS": 2, "ROWS": 64, "BLOCK_N": 128, "STAGES": 3, "HALVES": 1},
                                           *[{"ROWS": 64, "LEAN": 1, **way} for way in (
                                               {"GROUPS": 2, "BLOCK_N": 128, "STAGES": 3},
                                               {"GROUPS": 2, "BLOCK_N": 128, "STAGES": 3, "HALVES": 1},
                                               {"GROUPS": 4, "BLOCK_N": 64, "STAGES": 6})]]),
                128: [{"GROUPS": 2, "ROWS": 64, "BLOCK_N": 128, "STAGES": 2}],
                256: [{"GROUPS": 2, "ROWS": 64, "BLOCK_N": 64, "STAGES": 2}]},
    "backward_q": {64: [{"ROWS": 64, "BLOCK_N": 128, "STAGES": 3, "KEPT": 2}, {"ROWS": 64, "BLOCK_N": 64, "STAGES": 5, "KEPT": 2},
                        {"ROWS": 64, "BLOCK_N": 128, "STAGES": 2}, {"ROWS": 64, "BLOCK_N": 64, "STAGES": 3}],
                   128: [{"ROWS": 64, "BLOCK_N": 64, "STAGES": 3}], 256: [{"ROWS": 64, "BLOCK_N": 64, "STAGES": 2}]},
    "backward": {**dict.fromkeys((32, 64), [{"BLOCK_M": 128, "BLOCK_N": 128, "KEPT": 2, **way} for way in (
                     {"STAGES": 2}, {"STAGES": 3}, *[{"STAGES": 2, **order} for order in ORDERS])]),
                 128: [{"BLOCK_M": 64, "BLOCK_N": 128, **way} for way in (
                     *[{"KEPT": 1, "STAGES": 3, **order} for order in ({}, *ORDERS)],
                     *[{"KEPT": 2, "STAGES": 2, **order} for order in ({}, ORDERS[0])])]},
    "backward_kv": {64: [{"ROWS": 64, "BLOCK_M": 64, "STAGES": 4, "HELD": 1}, {"ROWS": 64, "BLOCK_M": 64, "STAGES": 4},
                         {"ROWS": 64, "BLOCK_M": 64, "STAGES": 3}],
                    128: [{"ROWS": 64, "BLOCK_M": 64, "STAGES": 3}],
                    256: [{"GROUPS": 1, "ROWS": 64, "BLOCK_M": 64, "STAGES": 2}]},
}
# The same under masks of rows and keys.
DENSE = {
    "forward": {**dict.fromkeys((32, 64), [{"GROUPS": 2, "ROWS": 64, "BLOCK_N": 128, "STAGES": 3}]),
                128: [{"GROUPS": 2, "ROWS": 64, "BLOCK_N": 128, "STAGES": 2}],
                256: [{"GROUPS": 2, "ROWS": 64, "BLOCK_N": 64, "STAGES": 2}]},
    "backward_q": {**dict.fromkeys((32, 64), [{"ROWS": 64, "BLOCK_N": 128, "STAGES": 2}]), 128: [{"ROWS": 64, "BLOCK_N": 64, "STAGES": 3}]},
    "backward_kv": {**dict.fromkeys((32, 64), [{"ROWS": 64, "BLOCK_M": 64, "STAGES": 3}]), 128: [{"ROWS": 64, "BLOCK_M": 64, "STAGES": 3}]},
    "backward": {},
}


def best_first(which, block, length, gluon, plain, apart):
    """First what an H100 found quickest, of causal attention in bfloat16. Heads of 64: forward, of 1024 rows, 84 µs in two groups, 103 in
    three, of 4096 635 and 610; all gradients at once 264 µs of 1024, apart 247, of 4096 1735 and 1849; the query's by pointers 107 µs, in
    Gluon 110. Of 128: at once 1483 µs, apart 1370. Gluon for 256, dropout or masks was not measured; for 256 it is predicted to take less
    than half of the time of the others. `apart`: it can do that, too."""
    if which == "backward":
        gluon, split = [{**way, "kernel": "together_gluon"} for way in gluon], [{"kernel": "apart"}]
        return split + gluon + plain if apart and (block == 128 or block == 64 and length < LONG) else gluon + split + plain
    if which == "forward" and block == 64 and length >= LONG:
        gluon = sorted(gluon, key=lambda way: (way.get("LEAN", 0), -way["GROUPS"]))               # what was not measured comes last
    if which == "backward_q" and block == 64 and gluon:
        return plain[-1:] + gluon[::-1] + plain[:-1]
    return gluon + plain


def candidate(kernel, tma, rows, keys, warps, stages):
    return {"kernel": kernel, "TMA": tma, "BLOCK_M": rows, "BLOCK_N": keys, "num_warps": warps, "num_stages": stages}


def shared_bytes(which, way, block, itemsize):
    """Shared memory that the operands of a tile take: what stays, and what the loop reads ahead."""
    rows, keys = way["BLOCK_M"], way["BLOCK_N"]
    stays, moves = {"forward": (rows, 2 * keys), "split": (rows, 2 * keys), "backward_q": (2 * rows, 2 * keys),
                     "backward_kv": (2 * keys, 2 * rows), "backward": (3 * keys, 2 * rows), "bias": (0, 3 * rows + 2 * keys)}[which]
    return (stays + moves * way["num_stages"]) * block * itemsize
