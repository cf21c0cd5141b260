"""Workloads with known lengths, prefixes and arrivals, and a client that drives any OpenAI-compatible server."""
