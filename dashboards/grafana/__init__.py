"""Grafana dashboards, generated; the JSON files beside this one are what they generate."""
