"""What a collective costs: the alpha-beta model, as pure functions of plain numbers (seconds, bytes, bytes a second).

A message of m bytes takes ``alpha + m / beta`` seconds; an algorithm takes its steps' alphas and the bytes that its
busiest link carries; where a rank is busy for each message, as on CPUs, its messages too. The model knows two kinds of
links, inside a node and between nodes, and two protocols: data with a separate flag (``signal``), and a flag in every
word (``packed``: less latency, half the bandwidth). It has no congestion, no stragglers and no cost of adding:
docs/cost-model.md says what that leaves out.

Sizes follow nccl-tests: of the tensor for all_reduce, broadcast, reduce and send_recv, and of the whole buffer (all
ranks' parts together) for the other collectives.
"""

from .algorithms import ALGORITHMS, DIRECT, PIPELINE, WORTH
from .choice import LARGEST, SMALLEST, Candidate, Crossover, best, candidates, crossovers, predict
from .explanation import Explanation, explain
from .machines import PROFILES, Link, Profile, Protocol, Topology, load_profile, two_levels, uniform
from .rates import BUSBW_FACTORS, COLLECTIVES, algbw, busbw, check_collective
from .textbook import balanced_bytes, ring_seconds, tree_below, tree_seconds

__all__ = [
    "ALGORITHMS",
    "BUSBW_FACTORS",
    "COLLECTIVES",
    "DIRECT",
    "LARGEST",
    "PIPELINE",
    "PROFILES",
    "SMALLEST",
    "WORTH",
    "Candidate",
    "Crossover",
    "Explanation",
    "Link",
    "Profile",
    "Protocol",
    "Topology",
    "algbw",
    "balanced_bytes",
    "best",
    "busbw",
    "candidates",
    "check_collective",
    "crossovers",
    "explain",
    "load_profile",
    "predict",
    "ring_seconds",
    "tree_below",
    "tree_seconds",
    "two_levels",
    "uniform",
]
