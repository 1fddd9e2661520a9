"""Clients share the machine by their weights, whatever they send: neither priorities, nor many requests, nor
long ones take from another client more than one ordinary request of the same client would, doubled.

Invariants, wherever several clients have requests here: a slot that becomes free goes to the client that has
the fewest for its weight; a client gives a slot back to another that waits where it then still has as many
for its weight (with equal weights: where it has two more), and so with blocks of the cache above its part;
each client has a row in every step, and all rows and prompts together take no more than TWICE the time of one
row a client; further rows go by weight; prompts share what there is by what each client had for its weight.
Priority, length and user order the requests of one client among themselves. With a single client nothing of
this has an effect.
"""

from __future__ import annotations

from collections import Counter, abc

from satchel.runtime.scheduler.fair import Fair
from satchel.runtime.scheduler.sequence import Sequence

TWICE = 1.8  # times one row a client; what is left to 2 covers a wrong prediction
TURN = 0.5  # seconds of a client before another, for which no slot is left, has its turn
FAR = 1e12  # tokens; who is behind by more has all of the room
LEAST = 64  # prompt tokens of a client in a step in which another client's prompt ends


class Shares:
    """What each client had, and each of its users. Only names with requests, or with a debt, are kept."""

    def __init__(self) -> None:
        self.clients = Fair()
        self._users: dict[str, Fair] = {}
        self._weights: dict[str, float] = {}

    def arrive(self, seq: Sequence) -> None:
        self._weights[seq.client] = seq.request.weight
        self.clients.arrive(seq.client)
        self._users.setdefault(seq.client, Fair()).arrive(seq.request.user)

    def charge(self, seq: Sequence, seconds: float) -> None:
        """The sequence had so many seconds of the machine."""
        self.clients.charge(seq.client, seconds, seq.request.weight)
        self._users.setdefault(seq.client, Fair()).charge(seq.request.user, seconds, seq.request.weight)

    def weight(self, client: str) -> float:
        """The weight of the client: that of its newest request."""
        return self._weights.get(client, 1.0)

    def had(self, client: str) -> float:
        """Seconds over weight that the client had, since all clients are counted: its virtual time."""
        return self.clients.virtual_time(client)

    def user_had(self, seq: Sequence) -> float:
        """The same of the sequence's user, among the users of its client."""
        users = self._users.get(seq.client)
        return users.virtual_time(seq.request.user) if users else 0.0

    def forget(self, seqs: abc.Iterable[Sequence] = ()) -> None:
        """Drops names without a request among these and without a debt."""
        users: dict[str, set[str]] = {}
        for seq in seqs:
            users.setdefault(seq.client, set()).add(seq.request.user)
        self.clients.forget(set(users))
        self._weights = {client: weight for client, weight in self._weights.items() if client in users}
        self._users = {client: fair for client, fair in self._users.items() if client in users}
        for client, fair in self._users.items():
            fair.forget(users[client])

    @property
    def names(self) -> int:
        """How many are kept."""
        return sum(fair.names for fair in (self.clients, *self._users.values()))


def slots_of(running: abc.Iterable[Sequence]) -> Counter[str]:
    """Slots of each client."""
    return Counter(seq.client for seq in running)


def giver(
    client: str,
    slots: abc.Mapping[str, int],
    had: abc.Callable[[str], float],
    begun: bool,
    weight: abc.Callable[[str], float],
) -> str | None:
    """The client that gives a slot back for a request of `client`, where none is free: one that has no fewer
    for its weight even then, or, where there are more clients than slots, the one that had most, at once for
    a request that has not begun, else after a turn. None: it waits.
    """
    others = [other for other in slots if other != client and slots[other]]
    if not others:
        return None
    most = max(others, key=lambda other: (slots[other] / weight(other), had(other)))
    own = slots.get(client, 0)
    after = (slots[most] - 1) / weight(most), (own + 1) / weight(client)
    if after[0] >= after[1] or (not own and had(most) - had(client) > TURN * begun):
        return most
    return None


def interleaved(seqs: abc.Sequence[Sequence], weight: abc.Callable[[str], float]) -> list[Sequence]:
    """The first sequence of each client, then the others by weight: with equal weights the second of each,
    and so on.
    """
    numbers, ranks, places = Counter[str](), dict[str, int](), []
    for seq in seqs:
        rank = ranks.setdefault(seq.client, len(ranks))
        numbers[seq.client] += 1
        number = numbers[seq.client]
        places.append((number / weight(seq.client) if number > 1 else 0.0, rank))
    return [seqs[i] for i in sorted(range(len(seqs)), key=places.__getitem__)]


def crowd(decoding: abc.Sequence[Sequence], beginning: abc.Sequence[Sequence]) -> float:
    """How many begin for each that decodes, as the client sees it that has the fewest of them: its own
    requests count one by one, another client's as one.
    """
    rows, begun = slots_of(decoding), slots_of(beginning)

    def seen(client: str) -> float:
        others_begin, others_decode = len(begun.keys() - {client}), len(rows.keys() - {client})
        return (begun[client] + others_begin) / (rows[client] + others_decode)

    return min(map(seen, rows))


def split(
    room: int, wanted: abc.Mapping[str, int], had: abc.Callable[[str], float], seconds: float
) -> dict[str, int]:
    """Prompt tokens of a step for each client, `room` in all and no more than it wants: as many as bring
    those who had less up to the others, up to one level that all share. seconds: of a token.
    """
    least = min(map(had, wanted), default=0.0)
    ahead = {client: min((had(client) - least) / seconds, FAR) for client in wanted}

    def up_to(level: int) -> dict[str, int]:
        return {c: max(0, min(wanted[c], int(level - ahead[c]))) for c in wanted}

    low, high = 0, int(max(ahead.values(), default=0.0)) + room + 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(up_to(middle).values()) <= room else (low, middle - 1)
    parts = up_to(low)
    for client in sorted(wanted, key=lambda c: ahead[c]):  # what is left is less than a token for each
        more = min(wanted[client], up_to(low + 1)[client]) - parts[client]
        parts[client] += max(0, min(more, room - sum(parts.values())))
    return parts


def ended_first(parts: abc.Mapping[str, int], wanted: abc.Mapping[str, int]) -> dict[str, int]:
    """The same parts for a step that nobody's next token waits for: where a client's prompts end in it, the
    others' parts are no larger, so that it waits no more than twice as long as alone.
    """
    ends = [parts[c] for c in parts if parts[c] and parts[c] == wanted[c]]
    if len(parts) < 2 or not ends:
        return dict(parts)
    most = max(LEAST, min(ends))
    return {client: min(part, most) for client, part in parts.items()}
