"""Clients share the machine by their weights, whatever they send. Neither priorities, nor many requests, nor
long ones take more from another client than twice what one ordinary request would.

Invariants while several clients have requests:

- A free slot goes to the client with the fewest slots for its weight.
- A client gives a slot back to a waiting one if it then still has no fewer for its weight (with equal
  weights: if it has two more). Blocks of the KV cache above a client's part go the same way.
- Each client has a row in every step. All rows and prompts together take at most TWICE the time of one row
  per client. Further rows go by weight, prompt tokens by what each client had for its weight.

Priority, length and user order the requests of one client among themselves. With a single client nothing of
this has an effect.
"""

from __future__ import annotations

from collections import Counter, abc

from satchel.runtime.scheduler.fair import Fair
from satchel.runtime.scheduler.sequence import Sequence

TWICE = 1.8  # times the step with one row per client; the rest to 2 covers a wrong prediction
TURN = 0.5  # seconds over weight after which a client gives its slot to one that has none
FAR = 1e12  # tokens; a client that is ahead of another by more gets no room
LEAST = 64  # prompt tokens that a client may always have in a step in which another client's prompt ends


class Shares:
    """Virtual times of clients and of their users. Only names with requests or with a debt are kept."""

    def __init__(self) -> None:
        self.clients = Fair()
        self._users: dict[str, Fair] = {}
        self._weights: dict[str, float] = {}

    def arrive(self, seq: Sequence) -> None:
        self._weights[seq.client] = seq.request.weight
        self.clients.arrive(seq.client)
        self._users.setdefault(seq.client, Fair()).arrive(seq.request.user)

    def charge(self, seqs: abc.Iterable[Sequence], seconds: abc.Iterable[float]) -> None:
        """Charges the sequences' clients and users for what each sequence had of a step."""
        sums: dict[tuple[str, str, float], float] = {}
        accounts = [seq.account for seq in seqs]
        if accounts and accounts.count(accounts[0]) == len(accounts):
            sums[accounts[0]] = sum(seconds)
        else:
            for account, spent in zip(accounts, seconds, strict=True):
                sums[account] = sums.get(account, 0.0) + spent
        for (client, user, weight), spent in sums.items():
            self.clients.charge(client, spent, weight)
            self._users.setdefault(client, Fair()).charge(user, spent, weight)

    def weight(self, client: str) -> float:
        """The weight of the client: that of its newest request."""
        return self._weights.get(client, 1.0)

    def had(self, client: str) -> float:
        """The client's virtual time: the seconds that it had, over its weight."""
        return self.clients.virtual_time(client)

    def user_had(self, seq: Sequence) -> float:
        """The virtual time of the sequence's user among the users of its client."""
        users = self._users.get(seq.client)
        return users.virtual_time(seq.request.user) if users else 0.0

    def forget(self, seqs: abc.Iterable[Sequence] = ()) -> None:
        """Drops names that have no request among these and no debt."""
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
        """Number of known clients and users."""
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
    """The client that gives a slot back to `client` when none is free; None: `client` waits.

    It is the client with the most slots for its weight, if it then still has no fewer than `client`. A client
    without a slot also gets one from a client that had more time: at once for a request that has not begun,
    else once the difference is a TURN.
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
    """The first sequence of each client, then the others by weight. With equal weights: the second of each,
    then the third of each, and so on.
    """
    numbers, ranks, places = Counter[str](), dict[str, int](), []
    for seq in seqs:
        rank = ranks.setdefault(seq.client, len(ranks))
        numbers[seq.client] += 1
        number = numbers[seq.client]
        places.append((number / weight(seq.client) if number > 1 else 0.0, rank))
    return [seqs[i] for i in sorted(range(len(seqs)), key=places.__getitem__)]


def crowd(decoding: abc.Sequence[Sequence], beginning: abc.Sequence[Sequence]) -> float:
    """Sequences that begin for each that decodes, the smallest such number that a decoding client sees. A
    client counts each sequence of its own, and all of another client's as one.
    """
    rows, begun = slots_of(decoding), slots_of(beginning)

    def seen(client: str) -> float:
        others_begin, others_decode = len(begun.keys() - {client}), len(rows.keys() - {client})
        return (begun[client] + others_begin) / (rows[client] + others_decode)

    return min(map(seen, rows))


def split(
    room: int, wanted: abc.Mapping[str, int], had: abc.Callable[[str], float], seconds: float
) -> dict[str, int]:
    """Prompt tokens of a step for each client: `room` in all, and for none more than it wants. Clients that
    had less get more, so that all reach one level of virtual time. seconds: of one token.
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
    for client in sorted(wanted, key=lambda c: ahead[c]):  # the rest is less than one token for each
        more = min(wanted[client], up_to(low + 1)[client]) - parts[client]
        parts[client] += max(0, min(more, room - sum(parts.values())))
    return parts


def ended_first(parts: abc.Mapping[str, int], wanted: abc.Mapping[str, int]) -> dict[str, int]:
    """The parts of a step in which no sequence decodes. If the prompts of a client end in it, no other part
    is larger than that client's, so that it waits at most twice as long as alone.
    """
    ends = [parts[c] for c in parts if parts[c] and parts[c] == wanted[c]]
    if len(parts) < 2 or not ends:
        return dict(parts)
    most = max(LEAST, min(ends))
    return {client: min(part, most) for client, part in parts.items()}
