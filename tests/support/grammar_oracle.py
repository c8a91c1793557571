"""Sentences of a grammar with their costs, by enumeration. Expansions are nested tuples, also written as JSGF.

("word", w), ("seq", x, ...), ("alt", (weight, x), ...) with weights or None for all, ("opt", x), ("star", x),
("plus", x), ("rule", name), ("null",), ("void",).
"""

import math

WORDS = "ab"
HALF = math.log(2)


def joined(first, second, longest):
    """Return all concatenations of a sentence of one set and one of the other, at the least cost."""
    found = {}
    for left, cost in first.items():
        for right, more in second.items():
            if len(left) + len(right) <= longest:
                both = left + right
                found[both] = min(found.get(both, math.inf), cost + more)
    return found


def merged(*parts):
    found = {}
    for shift, sentences in parts:
        for sentence, cost in sentences.items():
            found[sentence] = min(found.get(sentence, math.inf), cost + shift)
    return found


def repeated(body, longest):
    """Return one or more sentences of a body; after each, another one follows with probability one half."""
    found = merged((HALF, body))
    while True:
        more = merged((0.0, found), (HALF, joined(body, found, longest)))
        if all(abs(more[s] - found.get(s, math.inf)) < 1e-12 for s in more):
            return found
        found = more


def sentences(x, rules, longest):
    """Return {words: cost} of all sentences of at most `longest` words."""
    kind, *rest = x
    found = {(): 0.0}
    if kind == "word":
        found = {(rest[0],): 0.0} if longest else {}
    elif kind == "void":
        found = {}
    elif kind == "rule":
        found = sentences(rules[rest[0]], rules, longest)
    elif kind == "seq":
        for part in rest:
            found = joined(found, sentences(part, rules, longest), longest)
    elif kind == "alt":
        parts = [(1.0 if weight is None else weight, sentences(option, rules, longest)) for weight, option in rest]
        total = sum(weight for weight, _ in parts)
        found = merged(*((math.log(total / weight), part) for weight, part in parts if weight))
    elif kind == "opt":
        found = merged((HALF, found), (HALF, sentences(rest[0], rules, longest)))
    elif kind in ("star", "plus"):
        once = repeated(sentences(rest[0], rules, longest), longest)
        found = once if kind == "plus" else merged((HALF, found), (HALF, once))
    return found


def random_expansion(random, depth, rules=()):
    kinds = ["word"] * 3 + ["null", "void"][: random.random() < 0.2]
    if depth:
        kinds += ["seq", "alt", "opt", "star", "plus"] * 2 + ["rule"] * 2 * bool(rules)
    kind = random.choice(kinds)
    if kind == "word":
        return ("word", random.choice(WORDS))
    if kind in ("null", "void"):
        return (kind,)
    if kind == "rule":
        return ("rule", random.choice(list(rules)))
    if kind == "seq":
        return ("seq", *(random_expansion(random, depth - 1, rules) for _ in range(random.randint(2, 3))))
    if kind == "alt":
        weighted = random.random() < 0.5
        weights = [random.choice([0.0, 0.5, 1.0, 3.0]) if weighted else None for _ in range(random.randint(2, 3))]
        if weighted and not any(weights):
            weights[0] = 2.0
        return ("alt", *((w, random_expansion(random, depth - 1, rules)) for w in weights))
    return (kind, random_expansion(random, depth - 1, rules))


def written(x, random):
    """Return an expansion as JSGF, with white space, comments and tags at places where they have no meaning."""
    kind, *rest = x
    gap = random.choice([" ", "  ", "\n", " // | nothing\n", " /* ( */ ", " {a tag | \\}} "])
    if kind == "alt":
        parts = [("" if w is None else f"/{w}/ ") + written(option, random) for w, option in rest]
        return "(" + f"{gap}|".join(parts) + ")"
    if kind == "seq":
        return "(" + gap.join(written(part, random) for part in rest) + ")"
    if kind in ("opt", "star", "plus"):
        body = written(rest[0], random)
        return {"opt": f"[{body}]", "star": f"({body})*", "plus": f"({body})+"}[kind]
    if kind == "word":
        return rest[0] if random.random() < 0.8 else f'"{rest[0]}"'
    name = kind.upper() if kind in ("null", "void") else rest[0]
    return f"<{name}>" if kind != "rule" or random.random() < 0.7 else f"<tests.{name}>"


def accepted(acceptor, longest):
    """Return {words: cost} of all paths through an acceptor with at most `longest` words, the cheapest of each."""
    ways = {}
    for arc in acceptor.arcs:
        ways.setdefault(arc.source, []).append(arc)
    found, waiting = {}, {(0, ()): 0.0}
    for _ in range(200):
        if not waiting:
            return found
        after = {}
        for (state, said), cost in waiting.items():
            if state in acceptor.finals:
                found[said] = min(found.get(said, math.inf), cost + acceptor.finals[state])
            for arc in ways.get(state, ()):
                spoken = said if arc.word == "#0" else (*said, arc.word)
                if len(spoken) <= longest:
                    key = arc.target, spoken
                    after[key] = min(after.get(key, math.inf), cost + arc.cost)
        waiting = after
    raise AssertionError("the acceptor has a cycle without words")
