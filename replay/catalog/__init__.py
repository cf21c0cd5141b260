"""The catalog: incidents, findings, actions, bundles and replays in SQL."""

from checkengine.replay.catalog.catalog import Catalog, CatalogError

__all__ = ["Catalog", "CatalogError"]
