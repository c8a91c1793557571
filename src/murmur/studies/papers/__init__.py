"""The experiments of five papers at small size: real gradients on AN4 in the virtual world. `murmur papers --help`."""
