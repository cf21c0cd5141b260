"""Measuring commands: what checkengine costs and what it catches."""
