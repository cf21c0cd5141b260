"""Recorded traffic through the guards: `checkengine scan`."""
