"""Language models and grammars: n-grams, ARPA files, JSGF, acceptors."""
