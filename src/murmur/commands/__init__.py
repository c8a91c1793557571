"""Commands of the program `murmur`, one module each; `murmur.cli` imports a module on first use."""
