"""The 39 phones of CMUdict, and their map from the symbols of espeak-ng's voice en-us and of loan words.

Consonants and full vowels are the same sounds in another notation. The map of reduced vowels, and the rule that /ɹ/
after an r-coloured vowel is part of it, were chosen on one half of CMUdict's words (see docs/lexicons.md).
"""

from __future__ import annotations

from murmur.speech.lexicon.g2p import PhoneMap

VOWELS = frozenset({"AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"})
CONSONANTS = frozenset("BDFGKLMNPRSTVWYZ") | {"CH", "DH", "HH", "JH", "NG", "SH", "TH", "ZH"}
PHONES = VOWELS | CONSONANTS

ARPABET = PhoneMap.parse(
    """
    p P
    b B
    t T
    d D
    k K
    \u0261 G
    m M
    n N
    \u014b NG
    f F
    v V
    \u03b8 TH
    \u00f0 DH
    s S
    z Z
    \u0283 SH
    \u0292 ZH
    h HH
    t\u0283 CH
    d\u0292 JH
    l L
    \u0279 R
    w W
    j Y
    \u027e T     # the flap of butter; ladder has d
    \u0294 T     # the stop of button
    n\u0329 AH N
    \u0259l AH L
    i IY
    i\u02d0 IY
    \u026a IH
    \u1d7b IH    # the last vowel of roses
    \u025b EH
    \u00e6 AE
    \u0251\u02d0 AA
    \u0254 AO
    \u0254\u02d0 AO
    \u028a AH    # unstressed, as in regular
    \u02c8\u028a UH
    u\u02d0 UW
    \u028c AH
    \u0250 AH
    \u0259 AH
    \u025a ER
    \u025c\u02d0 ER
    \u025a+\u0279 ER
    \u025c\u02d0+\u0279 ER
    e\u026a EY
    a\u026a AY
    \u0254\u026a OY
    a\u028a AW
    o\u028a OW
    i\u0259 IY AH
    i\u0259+\u0279 IH R
    a\u026a\u0259 AY AH
    a\u026a\u025a AY ER
    a\u026a\u025a+\u0279 AY R
    \u0254\u02d0\u0279 AO R
    \u0254\u02d0\u0279+\u0279 AO R
    \u0251\u02d0\u0279 AA R
    \u0251\u02d0\u0279+\u0279 AA R
    \u025b\u0279 EH R
    \u025b\u0279+\u0279 EH R
    \u026a\u0279 IH R
    \u026a\u0279+\u0279 IH R
    \u028a\u0279 UH R
    \u028a\u0279+\u0279 UH R
    x K
    r R
    \u0281 R
    a AA
    e EY
    o OW
    o\u02d0 OW
    u UW
    y UW
    \u0252 AA
    \u00f8 ER
    \u0153 ER
    \u0272 N Y
    \u0261\u02b2 G    # Argyll
    \u0251\u0303 AA N
    \u0254\u0303 AO N
    \u025b\u0303 AE N
    """,
    "murmur.speech.lexicon.arpabet",
    VOWELS,
)
