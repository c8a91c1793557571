"""Words of decoding graphs at places where a runtime ignores them."""

import kaldifst


def unread_words(fst):
    """Number of arcs with a word on an epsilon or on input label 1, which sherpa-onnx ignores."""
    arcs = [arc for state in kaldifst.StateIterator(fst) for arc in kaldifst.ArcIterator(fst, state)]
    return sum(arc.olabel != 0 and arc.ilabel <= 1 for arc in arcs)
