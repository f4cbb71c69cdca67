"""Where a recorded model may be cut into stages, and the best cuts."""

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import fx, nn

from relay.base.errors import UserError
from relay.strategies._record import Like, Record, Untraceable
from relay.strategies._recorder import Recorder

CPU = torch.device("cpu")


class Calls:
    """The calls of a record that belong to one stage each, by their place in the order, and what forbids cuts.

    Calls that depend on nothing but the batch are `free`: each stage that needs them computes them from its own copy of
    the batch, and nothing of them is sent. `place` has the call of every other node.
    A cut at place p is one before call p. `allowed` are the places of cuts: no parameter is used on both sides, nothing
    that crosses is changed in place on the other side, and in training a gradient comes back. `owned` are names of
    further buffers that belong to one stage alone, as those that training changes do.
    """

    def __init__(self, record: Record, training: bool = True, owned: Set[str] = frozenset()) -> None:
        self.record = record
        changed = {name for node in record.graph.nodes for name in node.meta.get("changes", ())}
        self.owned = record.parameters | changed | owned  # other buffers may be in several stages
        self.free: set[fx.Node] = set()
        self.place: dict[fx.Node, int] = {}
        self.nodes: list[fx.Node] = []  # of each place: the call itself
        places: dict[int, int] = {}
        for node in record.graph.nodes:
            own = self.owned.intersection(node.meta.get("uses", ()))
            if not own and not node.meta.get("draws") and self.free.issuperset(node.all_input_nodes):
                self.free.add(node)
            elif node.op != "get_attr":
                if (call := node.meta["call"]) not in places:
                    places[call] = len(places)
                    self.nodes.append(node)
                self.place[node] = places[call]
        self.uses = [self._used(node) for node in self.nodes]
        self.trained = [place for place, used in enumerate(self.uses) if record.trainable & used]
        outputs = {node for node in record.outputs if isinstance(node, fx.Node)}
        self.until = {
            node: len(self.nodes) if node in outputs else max((self.place[u] for u in node.users), default=place)
            for node, place in self.place.items()
        }
        self.shared = self._shared()
        kept = self._kept_together()
        graded = self._crossed(lambda like: int(like.requires_grad))
        self.bytes = self._crossed(lambda like: prod(like.shape) * like.dtype.itemsize)
        barred = set().union(*(range(first + 1, last + 1) for first, last in (*self.shared.values(), *kept)))
        self.allowed = [
            place for place in range(1, len(self.nodes)) if place not in barred and (graded[place] or not training)
        ]

    def _used(self, node: fx.Node) -> set[str]:
        """The parameters and changed buffers that a call uses, itself or by its arguments."""
        return set(self.owned).intersection(name for each in _read(node) for name in each.meta.get("uses", ()))

    def _shared(self) -> dict[str, tuple[int, int]]:
        """The first and the last call that use each parameter, where they differ."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for place, used in enumerate(self.uses):
            for name in sorted(used):
                first.setdefault(name, place)
                last[name] = place
        return {name: (first[name], last[name]) for name in first if first[name] < last[name]}

    def _kept_together(self) -> list[tuple[int, int]]:
        """For each memory that is changed in place: the call that makes it, and the last one that changes it."""
        first_place: dict[int, int] = {}
        for node, place in self.place.items():
            if "storage" in node.meta:
                first_place.setdefault(node.meta["storage"], place)
        changes = [(s, self.place[n]) for n in self.nodes for s in n.meta.get("overwrites", ()) if s in first_place]
        return [(first_place[storage], place) for storage, place in changes]

    def _crossed(self, measure: Callable[[Like], int]) -> list[int]:
        """The sum of a measure of all that crosses each place."""
        change = [0] * (len(self.nodes) + 2)
        for node, place in self.place.items():
            if (like := node.meta.get("like")) and self.until[node] > place:
                change[place + 1] += measure(like)
                change[self.until[node] + 1] -= measure(like)
        return [*accumulate(change)]

    def crossing(self, place: int) -> list[fx.Node]:
        """The tensors that a later call, or the outputs, take from a call before the place; in order."""
        return [n for n, own_place in self.place.items() if own_place < place <= self.until[n] and "like" in n.meta]

    def cheapest(self, after: int, before: int) -> int | None:
        """Of the allowed places behind one call and up to another: that with the least to send, or the last such."""
        fitting = [place for place in self.allowed if after < place <= before]
        return min(fitting, key=lambda place: (self.bytes[place], -place), default=None)

    def candidates(self) -> list[int]:
        """The best place between each two neighbouring calls with parameters to train."""
        places = (self.cheapest(*pair) for pair in pairwise(self.trained))
        return [place for place in places if place is not None]

    def starts(self) -> dict[str, int]:
        """The modules at which the user may cut, by name: the place of each one's first call."""
        first: dict[str, int] = {}
        for place, node in enumerate(self.nodes):
            parts = node.meta["path"].split(".")
            for depth in range(1, len(parts) + 1):
                first.setdefault(".".join(parts[:depth]), place)
        inner = self.trained[:1] + self.trained[-1:]
        return {n: p for n, p in first.items() if n and p in set(self.allowed) and inner[0] < p <= inner[-1]}

    def divided(self, owners: Mapping[str, int], count: int) -> list[int]:
        """The places at which stages begin that own these parameters, and the end. Raises Untraceable."""
        stages = [{owners[name] for name in used} for used in self.uses]
        held = [(place, owner) for place, owned in enumerate(stages) for owner in owned]
        starts = [0]
        for stage in range(1, count):
            behind = max((place for place, owner in held if owner < stage), default=starts[-1] - 1)
            before = min((place for place, owner in held if owner >= stage), default=len(self.nodes))
            place = len(self.nodes) if before == len(self.nodes) else self.cheapest(behind, before)
            if place is None or behind >= before:
                raise Untraceable("the model calls its modules in another order where it evaluates")
            starts.append(place)
        return [*starts, len(self.nodes)]

    def owners(self, starts: Sequence[int]) -> dict[str, int]:
        """The stage of each parameter that is used, and the first one of each buffer."""
        stage_of: dict[str, int] = {}
        for stage, (start, end) in enumerate(pairwise(starts)):
            for node in self.nodes[start:end]:
                for each in _read(node):
                    for name in each.meta.get("uses", ()):
                        stage_of.setdefault(name, stage)
        return stage_of


def _read(node: fx.Node) -> list[fx.Node]:
    """A call, and the nodes of the parameters and buffers that are its arguments."""
    return [node, *(each for each in node.all_input_nodes if each.op == "get_attr")]


def cuttable(
    model: nn.Module,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    units: Sequence[str],
    device: torch.device = CPU,
) -> list[str] | str:
    """The names of modules at which the model may be cut, at all of them at once; or in one line why there are none.

    `arguments` and `keywords` are those of the model's call with a batch; they and the model may be on the meta device.
    `units` are names of modules that are not divided. `device` is where the model would compute.
    """
    try:
        calls = Calls(Recorder(model, device, units).record(arguments, keywords, training=True))
    except Untraceable as refused:
        return str(refused)
    starts = calls.starts()
    places = {place: name for name, place in reversed(starts.items())}
    gaps = ([places[p] for p in range(a + 1, b + 1) if p in places] for a, b in pairwise(calls.trained))
    return [names[-1] for names in gaps if names] or why_whole(calls)


def why_whole(calls: Calls) -> str:
    """Why a model cannot be cut anywhere."""
    for name, (first, last) in sorted(calls.shared.items(), key=lambda each: each[1][0] - each[1][1]):
        if first <= min(calls.trained) and last >= max(calls.trained):
            users = (calls.nodes[place].meta["path"] or "the model" for place in (first, last))
            return f"{' and '.join(dict.fromkeys(users))} share the parameter {name}, and all others lie between them"
    if len(calls.trained) < 2:
        paths = (calls.nodes[place].meta["path"] or "the model itself" for place in calls.trained)
        return f"all trained parameters are used in one piece: {', '.join(paths) or 'there are none'}"
    return "no two parts with parameters of the model follow each other"


def balanced(calls: Calls, seconds: Sequence[float], count: int) -> list[int]:
    """The places at which `count` stages begin, and the end: the costliest stage costs as little as possible.

    Among equally good cuts, that with the least sum of squared costs is chosen. Raises UserError for more stages than
    can be cut.
    """
    places = [0, *calls.candidates(), len(calls.nodes)]
    if not 1 <= count < len(places):
        why = f" ({why_whole(calls)})" if len(places) == 2 else ""
        raise UserError(
            f"stages: {count} is not allowed; allowed: 1 to {len(places) - 1}, as often as the model can be cut{why}"
        )
    cost = [0.0, *accumulate(seconds)]
    # best[end] is for the calls before that place: cost of the costliest stage, sum of squares, places of cuts.
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [0])}
    for _ in range(count):
        longer = {}
        for end in places[1:]:
            options = [
                (max(most, cost[end] - cost[start]), squares + (cost[end] - cost[start]) ** 2, [*cuts, end])
                for start, (most, squares, cuts) in best.items()
                if start < end
            ]
            if options:
                longer[end] = min(options)
        best = longer
    return best[len(calls.nodes)][2]


def cut_before(calls: Calls, names: Sequence[str]) -> list[int]:
    """The places at which stages begin, and the end, where the user names the first module of each stage but the first.

    Raises UserError for a module at which there can be no cut, and for a stage without parameters to train.
    """
    first_calls, places = calls.starts(), [0]
    for name in names:
        later = [each for each, place in first_calls.items() if place > places[-1]]
        behind = f" after {names[len(places) - 2]}" if name in first_calls and len(places) > 1 else ""
        place = first_calls.get(name, 0)
        trained = any(places[-1] <= each < place for each in calls.trained)
        if name not in later or not trained:
            lacks = ": no parameters are trained between the two" if name in later else ""
            raise UserError(
                f"cut_before: '{name}' is not allowed{behind}{lacks}; allowed: {', '.join(later) or 'none'}"
            )
        places.append(place)
    return [*places, len(calls.nodes)]
