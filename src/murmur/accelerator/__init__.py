"""Devices other than the processor; the only package that names a vendor."""
