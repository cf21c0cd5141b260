"""Bundles: a capture on disk. The format is told in `layout`."""

from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.bundle.privacy import DeploymentKey
from checkengine.replay.bundle.read import BundleReader
from checkengine.replay.bundle.store import append_result, bundles_in, erase_content, keep_newest, results_of
from checkengine.replay.bundle.write import write_bundle

__all__ = [
    "BundleError",
    "BundleReader",
    "DeploymentKey",
    "append_result",
    "bundles_in",
    "erase_content",
    "keep_newest",
    "results_of",
    "write_bundle",
]
