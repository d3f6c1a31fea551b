"""What each rank of a pipeline does, in which order: forward and backward passes of microbatches through its stages.

An action is written as PyTorch writes it: 2F0 is the forward pass of microbatch 0 through stage 2, B its backward pass, I the part of that
which gives gradients of the stage's inputs, W the part for its weights.
"""
import re
from collections import Counter
from enum import Enum
from typing import NamedTuple

from tritorch.errors import check


class Kind(str, Enum):
    """What is done with a microbatch."""

    FORWARD = "F"
    FULL_BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"


F, B, I, W = Kind.FORWARD, Kind.FULL_BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT


class Action(NamedTuple):
    """One thing that the rank of a stage does.

    >>> from tritorch.distributed.pipelining.orders import Action
    >>> Action.from_str("2F0").stage_index, Action.from_str("1SEND_B3")
    (2, 1SEND_B3)
    """

    stage_index: int
    computation_type: Kind
    microbatch_index: int

    def __repr__(self):
        return f"{self.stage_index}{self.computation_type.value}{self.microbatch_index}"

    __str__ = __repr__

    @staticmethod
    def from_str(text):
        """The action that is written so."""
        parts = re.fullmatch(r"(\d+)(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)(\d+)", text.strip())
        check(parts, "Action", "a stage, one of F B I W SEND_F RECV_F SEND_B RECV_B, and a microbatch, as in 2F0", repr(text))
        return Action(int(parts[1]), Kind(parts[2]), int(parts[3]))


class Order(list):
    """The actions of a rank. `add("FB", stage)` takes the next microbatches of a stage in turn."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def add(self, kinds, stage):
        for kind in map(Kind, kinds):
            self.append(Action(stage, kind, self.counts[stage, kind]))
            self.counts[stage, kind] += 1


# ------------------------------------------------------------------ which rank has which stage
def in_a_loop(stage, ranks):
    """The rank of a stage where after the last rank the first one goes on."""
    return stage % ranks


def in_a_v(stage, ranks):
    """The rank of a stage where the last rank goes on itself, and back to the first one."""
    turn, place = divmod(stage, ranks)
    return ranks - 1 - place if turn % 2 else place


# ------------------------------------------------------------------ the schedules
def gpipe(rank, ranks, local, n):
    """All forward passes, then all backward ones. Huang et al., arXiv:1811.06965."""
    order = Order()
    order.add("F" * n + "B" * n, rank)
    return order


def one_forward_one_backward(rank, ranks, local, n):
    """As many forward passes as keep the ranks behind busy, then a backward pass after each. Narayanan et al., arXiv:1806.03377."""
    return interleaved(rank, ranks, 1, n, ahead=1)


def breadth_first(rank, ranks, local, n):
    """All microbatches through one stage after the other, and back. Lamy-Poirier, arXiv:2211.05953."""
    stages = [rank + k * ranks for k in range(local)]
    return ([Action(stage, F, k) for stage in stages for k in range(n)]
            + [Action(stage, B, k) for stage in reversed(stages) for k in reversed(range(n))])


def interleaved(rank, ranks, local, n, ahead=2, apart=False):
    """One forward and one backward pass in turn, several stages a rank; `ahead` passes more before the first backward one for each rank
    behind. Narayanan et al., arXiv:2104.04473. `apart`: gradients of weights come `rank` backward passes later, where else the rank would
    wait. Qi et al., arXiv:2401.10241, schedule ZB-H1."""
    rounds = max(1, n // ranks)
    check(local == 1 or n % rounds == 0, "pipelining", f"microbatches that fill {rounds} rounds", n, error=ValueError)
    turns = [range(k * (n // rounds), (k + 1) * (n // rounds)) for k in range(rounds)] if local > 1 else [range(n)]
    forward = [(rank + k * ranks, batch) for turn in turns for k in range(local) for batch in turn]
    backward = [(rank + k * ranks, batch) for turn in turns for k in reversed(range(local)) for batch in turn]
    first = min((local - 1) * (n // rounds) + ahead * (ranks - 1 - rank), local * n)
    order = [Action(stage, F, batch) for stage, batch in forward[:first]]
    for k, (stage, batch) in enumerate(backward):
        order += [Action(stage, F, batch) for stage, batch in forward[first + k:first + k + 1]]
        order.append(Action(stage, I if apart else B, batch))
        if apart and k >= rank:
            order.append(Action(backward[k - rank][0], W, backward[k - rank][1]))
    return order + [Action(stage, W, batch) for stage, batch in backward[max(len(backward) - rank, 0):] if apart]


def interleaved_zero_bubble(rank, ranks, local, n):
    """`interleaved` with the gradients of weights apart."""
    return interleaved(rank, ranks, local, n, ahead=1, apart=True)


def zero_bubble_v(rank, ranks, local, n):
    """Two stages a rank, on the way there and back; gradients of weights fill what is left. Qi et al., arXiv:2401.10241, section 6."""
    order, there, back, least = Order(), rank, 2 * ranks - 1 - rank, max(n, 2 * ranks - 1)
    order.add("F" * (2 * (ranks - rank) - 1), there)
    for _ in range(rank):
        order.add("F", back)
        order.add("F", there)
    for _ in range(ranks - rank):
        order.add("FIW", back)
    while order.counts[back, F] < max(order.counts[there, F], least):
        if order.counts[there, F] < least:
            order.add("F", there)
        order.add("IW", there)
        order.add("FIW", back)
    for _ in range(rank):
        order.add("I", there)
        order.add("I", back)
    for _ in range(ranks - rank):
        order.add("IW", there)
    for stage in (back, there):
        order.add("W" * (order.counts[stage, I] - order.counts[stage, W]), stage)
    return [action for action in order if action.microbatch_index < n]


def dual_pipe_v(rank, ranks, local, n):
    """Two stages a rank as in `zero_bubble_v`; in the middle each forward pass stands beside a backward pass of the other stage. After
    DeepSeek-V3's DualPipe, arXiv:2412.19437, cut in half."""
    check(n >= 2 * ranks, "pipelining", f"at least as many microbatches as stages, {2 * ranks}", n, error=ValueError)
    order, there, back, behind = Order(), rank, 2 * ranks - 1 - rank, ranks - 1 - rank
    done, waiting = Counter(), []                                        # backward passes of each stage; weights that still wait

    def backward(stage, apart=False):
        order.append(Action(stage, I if apart else B, done[stage]))
        if apart:
            waiting.append(Action(stage, W, done[stage]))
        done[stage] += 1

    def weights():
        order.extend(waiting[:1])
        del waiting[:1]

    order.add("F" * (2 * behind), there)
    for _ in range(rank + 1):
        order.add("F", there)
        order.add("F", back)
    for _ in range(behind):
        backward(back, apart=True)
        weights()
        order.add("F", back)
    for _ in range(n - 2 * ranks + rank + 1):
        order.add("F", there)
        backward(back)
        order.add("F", back)
        backward(there)
    for _ in range(behind):
        backward(back)
        order.add("F", back)
        backward(there)
    half = (rank + 1) // 2
    for k in range(rank + 1):
        backward(back, apart=k > half or k == half and rank % 2 == 1)
        backward(there, apart=k >= half)
    for _ in range(behind):
        weights()
        backward(there, apart=True)
    order.extend(waiting)
    return order


# ------------------------------------------------------------------ all ranks together
def forward_only(order):
    """What is left of an order where nothing goes back."""
    return [action for action in order if action.computation_type is F]


def joined(order):
    """The order with I and W, where one follows the other, as one backward pass, which does less."""
    out = []
    for action in order:
        if action.computation_type is W and out and out[-1] == action._replace(computation_type=I):
            out[-1] = action._replace(computation_type=B)
        else:
            out.append(action)
    return out


def with_messages(orders, home, stages):
    """The orders of all ranks, {rank: actions}, with what they send and receive. `home(stage)` is the rank of a stage. A message has the
    same place in the order of both ranks that know of it, so that none waits for another in a circle, whatever a backend does.

    Errors: RuntimeError if ranks would wait for each other for ever.

    >>> from tritorch.distributed.pipelining.orders import gpipe, with_messages
    >>> with_messages({rank: gpipe(rank, 2, 1, 1) for rank in range(2)}, lambda stage: stage, 2)
    {0: [0F0, 0SEND_F0, 0RECV_B0, 0B0], 1: [1RECV_F0, 1F0, 1B0, 1SEND_B0]}
    """
    out, there, next_of = {rank: [] for rank in orders}, set(), dict.fromkeys(orders, 0)
    moved = True
    while moved:
        moved = False
        for rank, order in orders.items():
            if next_of[rank] == len(order):
                continue
            action = stage, kind, batch = order[next_of[rank]]
            if kind is not W and needs(action, stages) not in there | {None}:
                continue
            next_of[rank], moved = next_of[rank] + 1, True
            out[rank].append(action)
            forward = kind is F
            there.add((stage, forward, batch))
            to = stage + 1 if forward else stage - 1
            if kind is not W and 0 <= to < stages and home(to) != rank:
                out[rank].append(Action(stage, Kind.SEND_F if forward else Kind.SEND_B, batch))
                out[home(to)].append(Action(to, Kind.RECV_F if forward else Kind.RECV_B, batch))
    left = {rank: order[next_of[rank]] for rank, order in orders.items() if next_of[rank] < len(order)}
    check(not left, "pipelining", "an order in which no rank waits for ever", f"ranks that do: {left}")
    return out


def needs(action, stages):
    """What must have been computed before an action: (stage, whether forward, microbatch), None if nothing."""
    stage, kind, batch = action
    if kind is F:
        return (stage - 1, True, batch) if stage else None
    return (stage + 1, False, batch) if stage < stages - 1 else (stage, True, batch)


__all__ = ["Action", "Kind"]
