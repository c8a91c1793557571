"""Global mapping rules (GLM files of NIST), which make spellings of references and hypotheses agree before scoring.

    [FROM] => [TO] / [LEFT] __ [RIGHT]

Text is read from left to right. At each place the first rule of the file counts whose FROM stands there between LEFT
and RIGHT, both in the text as it was; a rule without contexts counts anywhere. A text begins and ends with a space.
Case does not matter. TO may hold alternatives `[{ GONNA / GOING TO }]` and optional words `[(%HESITATION)]`.
"""

from __future__ import annotations

import re
import unicodedata
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from murmur.speech.corpus.text_lines import decoded, unpacked
from murmur.speech.scoring.stm import TimedWord, TimeMarkError, each_optional

RULE = re.compile(
    r"\[(?P<find>[^]]*)\]\s*=>\s*(?P<put>.*?)\s*(?:/\s*(?P<left>\[[^]]*\])?\s*__\s*(?P<right>\[[^]]*\])?)?\s*$"
)
HYPHEN = re.compile(r"([^\s(])-(?=[^\s)])")
PARENTHESIS = re.compile(r"([()])")


class Rule(NamedTuple):
    """One rule, in lower case."""

    find: str
    put: str
    left: str
    right: str


@dataclass(frozen=True)
class MappingRules:
    """Rules in the order of their file."""

    rules: Sequence[Rule]

    @cached_property
    def by_first(self) -> Mapping[str, Sequence[Rule]]:
        """Rules by the first character that they look for."""
        found: dict[str, list[Rule]] = defaultdict(list)
        for rule in self.rules:
            found[rule.find[0]].append(rule)
        return found

    def applied(self, text: str) -> str:
        """Return a text with the rules applied, in lower case, its words separated by single spaces."""
        text = f" {' '.join(text.lower().split())} "
        made, at = list[str](), 0
        while at < len(text):
            rule = self._at(text, at)
            made.append(text[at] if rule is None else rule.put)
            at += 1 if rule is None else len(rule.find)
        return " ".join("".join(made).split())

    def _at(self, text: str, at: int) -> Rule | None:
        for rule in self.by_first.get(text[at], ()):
            end = at + len(rule.find)
            if text.startswith(rule.find, at) and text[:at].endswith(rule.left) and text.startswith(rule.right, end):
                return rule
        return None

    def of_reference(self, text: str) -> str:
        """Apply the rules to a transcript, also inside parentheses, then replace hyphens inside words by spaces.

        This is NIST's csrfilt.sh -dh: an optional word that a rule or a hyphen divides becomes optional words. Unlike
        csrfilt.sh, alternatives of an optional word are alternatives of optional words.
        """
        text = each_optional(without_hyphens(self.applied(PARENTHESIS.sub(r" \1 ", text))))
        return text.replace("( ", "(").replace(" )", ")")  # parentheses that do not match

    def of_hypothesis(self, words: Sequence[TimedWord]) -> tuple[TimedWord, ...]:
        """Apply the rules to each recognised word alone, then divide at hyphens; parts share the word's time equally.

        Rules with alternatives or optional words are for references and leave hypotheses as they are.
        """
        plain = MappingRules([rule for rule in self.rules if not set("{(") & set(rule.put)])
        found = list[TimedWord]()
        for word in words:
            parts = without_hyphens(plain.applied(word.word)).split()
            share = word.duration / max(1, len(parts))
            found += [TimedWord(word.begin + k * share, share, part) for k, part in enumerate(parts)]
        return tuple(found)


def read_glm(path: Path) -> MappingRules:
    """Read a GLM file; lines with ;; are comments, lines with * settings, which are not used.

    Raises:
        TimeMarkError: A line is no rule; names file and line.
        CorpusError: A rule is not UTF-8; names file and line.
        OSError: The file cannot be read.
    """
    rules = list[Rule]()
    for place, text in _uncommented(path):
        found = RULE.match(text)
        if found is None or not found["find"]:
            raise TimeMarkError(f"{place}: no rule ([FROM] => [TO] / [LEFT] __ [RIGHT]): {text!r}")
        put = re.sub(r"[][]", "", found["put"])
        left, right = ((found[side] or "")[1:-1] for side in ("left", "right"))
        rules.append(Rule(*(part.lower() for part in (found["find"], put, left, right))))
    return MappingRules(rules)


def _uncommented(path: Path) -> Iterator[tuple[str, str]]:
    """Yield place and text of each rule; comments and settings need not be UTF-8."""
    for number, line in enumerate(unpacked(path).removeprefix(BOM_UTF8).split(b"\n"), 1):
        rule = line.split(b";;", 1)[0].strip()
        if rule and not rule.startswith(b"*"):
            yield f"{path}:{number}", unicodedata.normalize("NFC", decoded(f"{path}:{number}", rule))


def without_hyphens(text: str) -> str:
    """Return a text with spaces for hyphens inside words; those of fragments stay."""
    return HYPHEN.sub(r"\1 ", text)
