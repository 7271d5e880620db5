"""Inference servers of a run: the actor that owns one, its process, and how SGLang is started."""
