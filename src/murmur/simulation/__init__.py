"""Simulated runs, the planner, and the theory of the strategies."""
