"""Simulated all-reduces: every message of every rank, its dependencies and the ports that it shares; no formulas.

Ranks are vectorised (one NumPy operation is a step of all ranks), so that 16,384 of them take seconds. Random latency
and slow ranks are drawn from a seed. See docs/cost-model.md.
"""

from .algorithms import ALGORITHMS, simulate
from .network import Fabric, Network, Noise, Outcome

__all__ = ["ALGORITHMS", "Fabric", "Network", "Noise", "Outcome", "simulate"]
