"""Description of a language model beside its weights, in plain files: all that scoring needs besides the weights.

`language_model.json` holds format, size of the network, number of words and the SHA-256 of `words.txt`, which holds
one word a line in the order of their numbers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.speech.corpus.atomic_folder import atomic_folder
from murmur.speech.corpus.file_errors import making_sense_of, read_object
from murmur.speech.features.shards import sha256_of
from murmur.speech.language_model.word_lstm import LstmLanguageModel, WordLstm
from murmur.speech.language_model.word_numbers import WordNumbers

FORMAT = "murmur language model 1"
VALUES, WORDS = "language_model.json", "words.txt"
AGAIN = "copy the run again, with all its files"


@dataclass(frozen=True)
class PortableLanguageModel:
    """Vocabulary and size of a language model; its training text is not needed.

    Attributes:
        words: vocabulary.
        network: size of the network.
    """

    words: WordNumbers
    network: WordLstm

    def build(self) -> LstmLanguageModel:
        """A module into which the weights can be loaded."""
        return self.network.build(len(self.words))

    @property
    def weights(self) -> int:
        """Number of weights, found without memory for them."""
        with torch.device("meta"):
            return sum(weight.numel() for weight in self.build().parameters())

    def save(self, folder: Path) -> None:
        """Write both files; the folder is replaced as a whole.

        Raises:
            OSError: a file cannot be written.
        """
        with atomic_folder(folder) as new:
            (new / WORDS).write_text("".join(f"{word}\n" for word in self.words.words), encoding="utf-8")
            values = {
                "format": FORMAT,
                "network": asdict(self.network),
                "words": len(self.words),
                "sha256": {WORDS: sha256_of(new / WORDS)},
            }
            (new / VALUES).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def open(folder: Path) -> PortableLanguageModel:
        """Read both files, after a check of the words' checksum.

        Raises:
            SettingError: a file is missing, or the words are not those that were written.
            CorpusError: the content has another form.
        """
        for name in (VALUES, WORDS):
            if not (folder / name).is_file():
                raise SettingError(f"{folder / name} is missing: {AGAIN}")
        values = read_object(folder / VALUES, AGAIN)
        with making_sense_of(folder / VALUES, AGAIN):
            if values["format"] != FORMAT:
                raise ValueError(f"format {values['format']!r}, not {FORMAT!r}")
            digest, network = str(values["sha256"][WORDS]), WordLstm(**values["network"])
        if sha256_of(folder / WORDS) != digest:
            raise SettingError(f"{folder / WORDS} is not what was written there: {AGAIN}")
        with making_sense_of(folder / WORDS, AGAIN):
            words = WordNumbers(tuple((folder / WORDS).read_text(encoding="utf-8").split("\n")[:-1]))
        found = PortableLanguageModel(words, network)
        with making_sense_of(folder / VALUES, AGAIN):
            if len(words) != values["words"] or found.weights < 1:
                raise ValueError(f"{counted(len(words), 'word')}, not {values['words']}")
        return found
