"""Probes of a machine that say what it can do for a model, before one is served: `checkengine probe`."""
