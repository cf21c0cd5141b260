"""checkengine: the check-engine light for LLM inference."""

__version__ = "0.1.0"
