"""Options of a trained model in use, of `decode`, `transcribe` and `export`: model, search, a user's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from murmur.commands.options import Settings, Trust
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read
from murmur.run.saved_model import Choice
from murmur.speech.language_model.grammar_file import looks_like_arpa
from murmur.speech.recognition.trained_run import Wanted
from murmur.speech.recognition.tuning import SearchRequest
from murmur.speech.tasks.graph_sources import GREEDY, LOOP, ONE_WORD
from murmur.speech.tasks.vocabulary import Kind, Vocabulary, WhichGuess

Weights = Annotated[
    Choice | None,
    typer.Option(
        "--weights",
        help="Model of the run: lowest (held-out loss), last, best or averaged; by default the one that the run tested,"
        " which is lowest unless the run had another --weights.",
    ),
]


@dataclass(frozen=True)
class Search:
    """Settings of the search, by their names in DecodeOptions.

    Attributes:
        acoustic_scale: Acoustic scale; by default as tuned on dev.
        insertion_penalty: Cost of a word, natural log; by default as tuned on dev.
    """

    panel: ClassVar[str] = "Search"
    acoustic_scale: Annotated[float | None, typer.Option("--scale", min=1e-06)] = None
    insertion_penalty: Annotated[float | None, typer.Option("--penalty")] = None

    @property
    def given(self) -> dict[str, Any]:
        """The settings with a value."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class SearchWithBeam(Search):
    """The same with the beam of a search that runs here.

    Attributes:
        beam: Search beam, a smaller one is faster; by default as tuned on dev.
    """

    beam: Annotated[float | None, typer.Option(min=1e-06)] = None


@dataclass(frozen=True)
class OfRun:
    """The trained model of a run: the source of its code and corpus, and which of its models.

    Attributes:
        experiment: File or recipe of the run, if it is needed (for its corpus or its code) and run.json does not name
            it.
    """

    experiment: str | None = None
    trust: Trust = False
    weights: Weights = None
    settings: Settings = ()

    def wanted(self, model: Path, search: SearchRequest) -> Wanted:
        """Return the request to open the model."""
        return Wanted(model, self.experiment, self.settings, search, self.trust, self.weights)


@dataclass(frozen=True)
class OwnVocabulary:
    """A user's own vocabulary, and data to tune the search on.

    Attributes:
        grammar: JSGF file (or acceptor in OpenFst's text format), or a grammar by name: loop, 'one word', a language
            model; for CTC also greedy. By default the experiment's.
        lm: Language model in ARPA format, plain or .gz.
        words: List of words, one per line; they are recognised in any order.
        lexicon: Pronunciations that the model's lexicon lacks, or that replace its own.
        guess: Pronunciation of words that are in no lexicon: espeak, graphemes, none (refuse them), or auto (the
            installed method that fits the model).
        dev: Data to tune scale and word cost on: a Kaldi data directory, a cut manifest, or dev of the experiment.
    """

    panel: ClassVar[str] = "Your own vocabulary (docs/my_vocabulary.md)"
    grammar: Annotated[str | None, typer.Option(metavar="NAME|FILE")] = None
    lm: Path | None = None
    words: Path | None = None
    lexicon: Path | None = None
    guess: WhichGuess = "auto"
    dev: Annotated[str | None, typer.Option(metavar="DATA")] = None

    @property
    def files(self) -> tuple[str | Path | None, ...]:
        """Names that may be files."""
        return self.grammar, self.lm, self.words, self.lexicon, self.dev

    def request(self, settings: Search) -> SearchRequest:
        """Return the request of a search with the given settings.

        Raises:
            SettingError: options exclude or need each other, or a file is missing.
        """
        return SearchRequest(self._chosen(), self.dev, settings.given)

    def _chosen(self) -> str | Vocabulary | None:
        """The user's own vocabulary, the name of a grammar, or None for that of the run."""
        sources: Mapping[Kind, Path | None] = {"grammar": _file(self.grammar), "lm": self.lm, "words": self.words}
        given = [f"--{kind}" for kind in sources if getattr(self, kind) is not None]
        if len(given) > 1:
            raise SettingError(f"{' and '.join(given)} exclude each other: give one")
        for kind, source in sources.items():
            if source is not None:
                file_to_read(source, f"--{kind}")
                if self.lexicon is not None:
                    file_to_read(self.lexicon, "--lexicon")
                return Vocabulary(kind, source, self.lexicon, self.guess)
        if self.lexicon is not None or self.guess != "auto":
            option = "--lexicon" if self.lexicon is not None else "--guess"
            raise SettingError(f"{option} needs your own vocabulary: add a --grammar FILE, --lm or --words")
        return self.grammar


def given_options(*groups: Search | OfRun | OwnVocabulary) -> list[str]:
    """Options whose values are not the defaults."""
    names = {"settings": "set", "acoustic_scale": "scale", "insertion_penalty": "penalty"}
    given = [f.name for group in groups for f in fields(group) if getattr(group, f.name) != f.default]
    return [f"--{names.get(name, name)}" for name in given]


def _file(grammar: str | None) -> Path | None:
    """Return the file of a grammar; None for names and for language models, which CTC also takes as --grammar."""
    if grammar is None or grammar in (LOOP, ONE_WORD, GREEDY) or not Path(grammar).is_file():
        return None
    return None if looks_like_arpa(Path(grammar)) else Path(grammar)
