"""What leaves a directory of bundles by itself or on demand: expired content, too many bundles, one person's data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from checkengine.replay.bundle.access import AccessLog
from checkengine.replay.bundle.draft import remove_leftovers
from checkengine.replay.bundle.expiry import expired, held
from checkengine.replay.bundle.layout import STEP, BundleError
from checkengine.replay.bundle.privacy import DeploymentKey, deployment_key
from checkengine.replay.bundle.read import BundleReader
from checkengine.replay.bundle.store import bundles_in, erase_content, has_content, keep_newest


@dataclass(slots=True)
class Collected:
    """What a collection did, by bundle names."""

    erased: list[str] = field(default_factory=list)
    """Content expired."""
    removed: list[str] = field(default_factory=list)
    """More than were to be kept."""
    held: list[str] = field(default_factory=list)
    """Would have gone, but for a hold."""
    unreadable: list[str] = field(default_factory=list)
    """No whole bundle: left alone."""


def collect(directory: Path | str, keep: int | None = None, now: float | None = None) -> Collected:
    """Erase content that has expired, then remove the oldest bundles until `keep` are left, and what dead writers left
    behind."""
    done = Collected()
    remove_leftovers(Path(directory))
    for path in bundles_in(directory):
        try:
            manifest = BundleReader(path).manifest
        except BundleError:
            done.unreadable.append(path.name)
            continue
        if held(path):
            done.held.append(path.name)
        elif expired(path, manifest, now) and erase_logged(path, "expired"):
            done.erased.append(path.name)
    if keep is not None:
        done.removed = [path.name for path in keep_newest(directory, keep)]
    return done


def erase_subject(directory: Path | str, subject: str, key: DeploymentKey | None = None) -> list[str]:
    """Erase the content of every bundle in which a sequence has this name (the request's id), held ones too: the right
    to erasure does not wait. Names on disk are keyed hashes, so this finds them with the deployment key alone."""
    wanted = (key or deployment_key()).name(subject)
    return [
        path.name
        for path in bundles_in(directory)
        if wanted in names_of(path) and erase_logged(path, f"subject {wanted}")
    ]


def names_of(bundle: Path) -> set[str]:
    """Keyed names of the sequences; none where the bundle cannot be read."""
    try:
        told = BundleReader(bundle).json(STEP)["sequences"]
        return {str(entry["name"]) for entry in told.values()}
    except (BundleError, KeyError, TypeError, AttributeError):
        return set()


def erase_logged(bundle: Path, purpose: str) -> bool:
    """The row comes first: an erasure that is not on record has not been asked for. What is erased makes no row."""
    if not has_content(bundle):
        return False
    AccessLog.of_this_deployment().add("erase", bundle.name, purpose)
    return erase_content(bundle)
