"""Drills of KV in motion, machines that fail and models that loop: `checkengine drill NAME`."""
