"""Tasks of the papers: networks at their published sizes, and single frames in random order."""
