"""Hybrid systems: Gaussian models align, a network learns their states, a graph decodes."""
