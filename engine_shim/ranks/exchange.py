"""All-to-all of rows among ranks, each payload with a checksum of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from checkengine.detectors.seal import hash_tensor

KEYED = 0x9E3779B97F4A7C15


class BrokenPayload(Exception):
    """What arrived is not what was sent; `sender` and `receiver` are lasting rank numbers."""

    def __init__(self, sender: int, receiver: int) -> None:
        super().__init__(f"what rank {sender} sent to rank {receiver} broke on its way")
        self.sender, self.receiver = sender, receiver


@dataclass(frozen=True, slots=True)
class Group:
    """The process group as one rank sees it: lasting numbers in the order of the group."""

    members: tuple[int, ...]
    own: int
    broken: list[int] = field(default_factory=list)
    """Senders of payloads that broke on their way in this step."""


def checksum(rows: torch.Tensor, tags: torch.Tensor) -> int:
    """Of rows (n, width) and what goes with them (n,), by place: rows that change places are told."""
    labels = tags.numpy().astype(np.int64).view(np.uint32).reshape(-1, 2)
    parts = [rows.detach().numpy().view(np.uint32), labels]
    total = len(rows)
    for part in parts:
        hashes = hash_tensor(part[None, :, None, :])[0, :, 0]
        for place, each in enumerate(hashes.tolist()):
            total = (total * KEYED + each + place) % 2**63
    return total


def exchange(
    group: Group, rows: Sequence[torch.Tensor], tags: Sequence[torch.Tensor], *, flip: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Send `rows[i]` (n_i, width) and `tags[i]` (n_i,) to the i-th member; returns what came from each.

    Where a checksum does not fit the sender is put into `group.broken`, and the step goes on to its end: a rank that
    left it in the middle would let all others wait. `flip` damages one bit behind the checksum: a planted fault.
    """
    counts = torch.tensor([len(each) for each in rows])
    sums = torch.tensor([checksum(r, t) for r, t in zip(rows, tags, strict=True)])
    heads = torch.stack([counts, sums], 1).contiguous()
    arriving = torch.empty_like(heads)
    dist.all_to_all_single(arriving, heads)
    sent = torch.cat(list(rows)).contiguous()
    if flip and sent.numel():
        sent.view(torch.int32).view(-1)[0] ^= 1 << 20
    received = _all_to_all(sent, counts, arriving[:, 0])
    labels = _all_to_all(torch.cat(list(tags)), counts, arriving[:, 0])
    sizes = arriving[:, 0].tolist()
    parts, labelled = list(torch.split(received, sizes)), list(torch.split(labels, sizes))
    for place, (part, label) in enumerate(zip(parts, labelled, strict=True)):
        if checksum(part, label) != int(arriving[place, 1]):
            group.broken.append(group.members[place])
    return parts, labelled


def _all_to_all(values: torch.Tensor, sending: torch.Tensor, arriving: torch.Tensor) -> torch.Tensor:
    found = values.new_empty((int(arriving.sum()), *values.shape[1:]))
    dist.all_to_all_single(found, values, arriving.tolist(), sending.tolist())
    return found
