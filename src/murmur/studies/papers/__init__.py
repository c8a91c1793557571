"""The experiments of five papers, made small: real gradients on AN4 in the virtual world. `murmur papers --help`."""
