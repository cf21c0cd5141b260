"""Prometheus rules, generated; `checkengine.rules.yaml` beside this file is what they generate."""
