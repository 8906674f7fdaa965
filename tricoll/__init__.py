"""Collectives for multi-GPU training, with device code written in Triton."""
