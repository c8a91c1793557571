"""Membership among processes: client, server, claims, failure detector."""
