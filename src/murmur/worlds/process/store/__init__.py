"""The key-value store of a launch: its server and its client."""
