"""Advice: which mesh, layout, activation checkpointing and accumulation a run needs on given devices."""
