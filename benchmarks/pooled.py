"""Many cases of one kind, in a process for each core and for so long: results in the order of the cases."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

Case = TypeVar("Case")
Result = TypeVar("Result")
AHEAD = 2
"""Cases that wait for each process, so that none is idle and few are lost when time is up."""


def cores() -> int:
    return len(os.sched_getaffinity(0))


def pooled(
    judge: Callable[[Case], Result], cases: Iterable[Case], most_seconds: float, *, processes: int | None = None
) -> Generator[Result, None, None]:
    """`judge` of each case, until `most_seconds` have passed: what has begun by then is waited for, the rest is left
    out. `judge` is a function of a module, since it is found by name in the other processes; with one process it runs
    in this one. Its errors come out here."""
    ends = time.monotonic() + most_seconds
    waiting = iter(cases)
    count = cores() if processes is None else processes
    if count == 1:
        for case in waiting:
            if time.monotonic() > ends:
                return
            yield judge(case)
        return
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), one_thread) as pool:
        begun: deque[Future[Result]] = deque(pool.submit(judge, case) for case in islice(waiting, AHEAD * count))
        while begun:
            yield begun.popleft().result()
            if time.monotonic() <= ends:
                begun += [pool.submit(judge, case) for case in islice(waiting, 1)]


def stopped(done: int, wanted: int, most_seconds: float) -> str:
    """For a figure's name, where time was up before all were done."""
    return "" if done >= wanted else f" (of {wanted:,}: {most_seconds:.0f} s were up)"


def one_thread() -> None:
    torch.set_num_threads(1)
