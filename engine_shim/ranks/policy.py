"""What happens to requests and experts when a rank is lost. Engine-neutral: names and numbers in, a plan out.

The order is that of the plan's fields: cancel what runs on the rank, drain it, re-home its experts, re-prefill its
requests elsewhere. An adapter carries out what its engine offers and says what it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Membership:
    """Ranks by their lasting numbers; `experts[e]` is the rank that computes expert e."""

    ranks: tuple[int, ...]
    experts: tuple[int, ...]
    spares: tuple[int, ...] = ()
    epoch: int = 0

    def owned(self, rank: int) -> tuple[int, ...]:
        return tuple(expert for expert, owner in enumerate(self.experts) if owner == rank)


@dataclass(frozen=True, slots=True)
class Plan:
    cancel: tuple[str, ...]
    """Requests whose step is void on the lost rank."""
    drain: int
    rehome: Mapping[int, int]
    """Expert to the rank that takes it over."""
    reprefill: Mapping[str, int]
    """Request to the rank that computes it again from its tokens so far."""
    membership: Membership


class NoRankLeft(Exception):
    """Every rank is lost: there is nobody to take over."""


def plan_for_loss(lost: int, membership: Membership, requests: Mapping[str, int]) -> Plan:
    """`requests` says which rank runs which request. NoRankLeft where nobody is left.

    A hot spare takes the lost rank's place whole; without one its experts go to the survivors that have fewest, and
    its requests to those that run fewest.
    """
    survivors = tuple(rank for rank in membership.ranks if rank != lost)
    if membership.spares:
        heir, spares = membership.spares[0], membership.spares[1:]
        ranks = (*survivors, heir)
        rehome = dict.fromkeys(membership.owned(lost), heir)
    else:
        heir, spares, ranks = None, (), survivors
        if not survivors:
            raise NoRankLeft(f"rank {lost} was the last one")
        rehome = _shared_out(membership.owned(lost), survivors, membership)
    orphans = tuple(name for name, rank in requests.items() if rank == lost)
    moved = dict.fromkeys(orphans, heir) if heir is not None else _least_loaded(orphans, ranks, requests)
    experts = tuple(rehome.get(expert, owner) for expert, owner in enumerate(membership.experts))
    after = replace(membership, ranks=ranks, experts=experts, spares=spares, epoch=membership.epoch + 1)
    return Plan(orphans, lost, rehome, moved, after)


def _shared_out(experts: Sequence[int], survivors: Sequence[int], membership: Membership) -> dict[int, int]:
    load = {rank: len(membership.owned(rank)) for rank in survivors}
    found: dict[int, int] = {}
    for expert in experts:
        rank = min(load, key=lambda each: (load[each], each))
        load[rank] += 1
        found[expert] = rank
    return found


def _least_loaded(orphans: Sequence[str], ranks: Sequence[int], requests: Mapping[str, int]) -> dict[str, int]:
    load = {rank: sum(owner == rank for owner in requests.values()) for rank in ranks}
    found: dict[str, int] = {}
    for name in orphans:
        rank = min(load, key=lambda each: (load[each], each))
        load[rank] += 1
        found[name] = rank
    return found
