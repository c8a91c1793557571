"""The store of a launch: its server and its clients."""
