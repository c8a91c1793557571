"""Planner: hours, bottleneck and cost of strategies on a cluster, in closed form."""
