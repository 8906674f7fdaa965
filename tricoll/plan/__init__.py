"""What data parallelism costs a training step: a timeline of gradient buckets, and the memory of a GPU.

See docs/cost-model.md; ``tricoll plan`` prints it.
"""

from .buckets import Timeline, best_bucket, bucket_sizes, ready_times, timeline, uniform_timeline
from .step import Plan, make

__all__ = [
    "Plan",
    "Timeline",
    "best_bucket",
    "bucket_sizes",
    "make",
    "ready_times",
    "timeline",
    "uniform_timeline",
]
