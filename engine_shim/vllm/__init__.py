"""vLLM: guards, black box and replay inside an unmodified engine. Nothing here imports vLLM before it is used."""
