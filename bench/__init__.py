"""Benchmarks of tricoll against other collectives libraries."""
