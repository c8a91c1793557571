"""CTC systems: a network of phones, letters or words, decoded greedily or with a graph."""
