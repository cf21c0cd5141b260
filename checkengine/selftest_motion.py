"""Planted faults of KV in motion, of ranks and of looped models, each by its class: is it told by its name?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from checkengine.figures import Figure

MOTION_CLASSES = ("kv transfer", "kv tier", "lost rank", "looped model")
"""`--class` names; the ranks' takes a minute and is not among the quick ones."""
RADII = (1.2, 1.4)
PROMPT = [(7 * place) % 150 + 3 for place in range(41)]


def quick_figures() -> list[Figure]:
    return [figure for name in MOTION_CLASSES if name != "lost rank" for figure in class_figures(name)]


def class_figures(name: str) -> list[Figure]:
    return list(_CLASSES[name]())


def transfer_figures() -> Iterator[Figure]:
    """Each class of a broken block, on every side of the transfer that can break it."""
    from checkengine.engine_shim.tiers.moves import PLANTED, sides_of
    from checkengine.motion.tiers import is_named, planted_run

    for seed, (planted, side) in enumerate((each, side) for each in PLANTED for side in sides_of(each)):
        found = planted_run(planted, seed, side)
        right = is_named(found.told, planted) and found.sides == [side] and found.answer == found.clean
        yield _figure(f"planted {planted}, {side} side (kv transfer)", right)


def tier_figures() -> Iterator[Figure]:
    """What a crash or a foreign hand leaves in the disk tier's folder."""
    damages: Mapping[str, Callable[[bytes], bytes]] = {
        "torn file": lambda content: content[: len(content) // 2],
        "empty file": lambda content: b"",
        "flipped bit in a file": lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
        "another file": lambda content: b"\xff" * len(content),
    }
    for name, damage in damages.items():
        with tempfile.TemporaryDirectory() as folder:
            clean, _, files = _served(Path(folder))
            for file in files:
                file.write_bytes(damage(file.read_bytes()))
            answer, cached, _ = _served(Path(folder))
        yield _figure(f"planted {name} (kv tier)", bool(files) and cached == 0 and answer == clean)


def rank_figures() -> Iterator[Figure]:
    """A rank of four that is killed, hangs, is slow, whose link flaps, that answers wrongly."""
    from checkengine.motion import expert_loss

    clean = expert_loss.run_clean()
    killed = expert_loss.kill_figures(clean, 1)
    yield _figure("planted killed (lost rank)", all(figure["ok"] for figure in killed))
    for name in expert_loss.TROUBLES:
        found = expert_loss.trouble_run(name, clean)
        yield _figure(f"planted {name} (lost rank)", found.named and found.equal)


def loop_figures() -> Iterator[Figure]:
    from checkengine.motion.loop import run
    from checkengine.motion.looped_model import FORMS

    for form in FORMS:
        stable = form == "constrained"
        for radius in RADII:
            found = run(form, radius, 0)
            in_time = sum(loop < (found.overflow or loop + 1) for loop in found.told)
            right = not found.told if stable else in_time == found.rows
            name = "clean" if stable else "planted"
            yield _figure(f"{name} {form} loop, radius {radius} (looped model)", right)


def _served(folder: Path) -> tuple[list[int], int, list[Path]]:
    """The answer's tokens, prompt tokens that came from the disk, and the files that were left there."""
    from checkengine.engine_shim.engine.engine import Engine
    from checkengine.engine_shim.settings import EngineSettings
    from checkengine.engine_shim.tier_settings import TierSettings
    from checkengine.motion.tiers import serve
    from checkengine.tiny import tiny_model

    tiers = TierSettings(host_bytes=1 << 20, disk_bytes=1 << 24, directory=folder)
    engine = Engine(tiny_model(), None, EngineSettings(block_size=8, blocks=9, threads=1, tiers=tiers))
    try:
        answer, cached, _ = serve(engine, "a", PROMPT)
        for other in (1, 2):
            serve(engine, str(other), [(token + other) % 150 + 3 for token in PROMPT])
    finally:
        engine.close()
    return answer, cached, sorted(folder.rglob("*.kv"))


def _figure(name: str, right: bool) -> Figure:
    return {"name": name, "value": int(not right), "unit": "wrong", "target": 0, "ok": right}


_CLASSES: Mapping[str, Callable[[], Iterator[Figure]]] = {
    "kv transfer": transfer_figures,
    "kv tier": tier_figures,
    "lost rank": rank_figures,
    "looped model": loop_figures,
}
