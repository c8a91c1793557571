"""The corpora that `murmur prepare` knows: content, size, licence, address, reader.

Sizes and hours are those that the publishers state, rounded. Digests are SHA-256 of the archives, given if known from
a second source (torchaudio's data sets); archives without one are checked by gzip's own sums alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from murmur.speech.corpus.published.own import read_own
from murmur.speech.corpus.published.readers import (
    Reader,
    read_aishell,
    read_an4,
    read_fsdd,
    read_librispeech,
    read_yesno,
)
from murmur.speech.corpus.published.telephone import read_telephone
from murmur.speech.corpus.published.transcripts import ENGLISH, PROSE, SPOKEN, UNSPACED, TranscriptRule

OPENSLR = "https://www.openslr.org/resources"
_FSDD_COMMIT = "26eb9aaf76e81b692f806f9140c2d2777410d7a1"


@dataclass(frozen=True)
class CorpusPart:
    """The contents of one archive.

    Attributes:
        name: name of the part, as published.
        hours: hours of speech.
        megabytes: size of the archive.
        sha256: digest of the archive; "" if unknown.
        archive: path of the archive below the address of the corpus; "" for NAME.tar.gz.
        optional: download the part only if it is named.
        nested: pattern of paths of archives inside, which are unpacked in place.
        packages: folders that hold the part, for one that cannot be downloaded.
    """

    name: str
    hours: float
    megabytes: float = 0
    sha256: str = ""
    archive: str = ""
    optional: bool = False
    nested: str = ""
    packages: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Path of the archive below the address of the corpus."""
        return self.archive or f"{self.name}.tar.gz"


@dataclass(frozen=True)
class Published:
    """One published corpus.

    Attributes:
        about: short description of the content.
        licence: licence for its use.
        page: address of the publisher's description.
        address: base address of the archives; "" for a corpus that cannot be downloaded.
        parts: archives.
        rule: rule that normalises the transcripts.
        splits: assignment of utterances to train, dev and test, in a sentence.
        read: reader of an unpacked copy.
        units: output units of a CTC network, "word" or "char".
        recipe: recipe for this corpus, "" for `ctc`.
        needs: files in the set that the recipe needs.
    """

    about: str
    licence: str
    page: str
    address: str
    parts: tuple[CorpusPart, ...]
    rule: TranscriptRule
    splits: str
    read: Reader
    units: str = "char"
    recipe: str = ""
    needs: tuple[str, ...] = ()


SWBD1 = CorpusPart("swbd1", 260, packages=("LDC97S62", "swb_ms98_transcriptions"))
FISHER1 = CorpusPart("fisher1", 984, packages=("LDC2004S13", "LDC2004T19"))
FISHER2 = CorpusPart("fisher2", 976, packages=("LDC2005S13", "LDC2005T19"))
HUB5 = CorpusPart("hub5-00", 11, packages=("LDC2002S09", "LDC2002T43"))
HOME = CorpusPart("callhome", 60, packages=("LDC97S42", "LDC97T14"))
CALLS_AS_DEV = "every 50th call is dev, the others are train; Hub5'00 is test"


def _licensed(about: str, page: str, parts: tuple[CorpusPart, ...], splits: str) -> Published:
    """Corpus of conversations that the LDC licenses to its members."""
    return Published(
        about=f"{about}, two channels, 8 kHz",
        licence="the LDC's user agreement",
        page=f"https://catalog.ldc.upenn.edu/{page}",
        address="",
        parts=parts,
        rule=SPOKEN,
        splits=splits,
        read=read_telephone,
    )


LIBRISPEECH = (
    CorpusPart("train-clean-100", 100.6, 6300, "d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2"),
    CorpusPart("dev-clean", 5.4, 337, "76f87d090650617fca0cac8f88b9416e0ebf80350acb97b343a85fa903728ab3"),
    CorpusPart("test-clean", 5.4, 346, "39fde525e59672dc6d1551919b1478f724438a95aa55f874b576be21967e6c23"),
)
MORE_OF_LIBRISPEECH = (
    CorpusPart("dev-other", 5.3, 314, "12661c48e8c3fe1de2c1caa4c3e135193bfb1811584f11f569dd12645aa84365"),
    CorpusPart("test-other", 5.1, 328, "d09c181bba5cf717b3dee7d4d592af11a3ee3a09e08ae025c5506f6ebe961c29"),
    CorpusPart("train-clean-360", 363.6, 23000, "146a56496217e96c14334a160df97fffedd6e0a04e66b9c5af0d40be3c792ecf"),
    CorpusPart("train-other-500", 496.7, 30000, "ddb22f27f96ec163645d53215559df6aa36515f26e01dd70798188350adcb6d2"),
)

CORPORA: Mapping[str, Published] = {
    "mini-librispeech": Published(
        about="read English, 16 kHz: 5 h for training and 2 h for test out of LibriSpeech",
        licence="CC BY 4.0",
        page="https://www.openslr.org/31/",
        address=f"{OPENSLR}/31",
        parts=(
            CorpusPart("train-clean-5", 5.3, 332),
            CorpusPart("dev-clean-2", 2.0, 126),
        ),
        rule=ENGLISH,
        splits="train-clean-5 is train, dev-clean-2 is test; training takes every eighth speaker of train as dev",
        read=read_librispeech,
    ),
    "librispeech": Published(
        about="read English, 16 kHz, 2,484 speakers",
        licence="CC BY 4.0",
        page="https://www.openslr.org/12/",
        address=f"{OPENSLR}/12",
        parts=(*LIBRISPEECH, *(replace(part, optional=True) for part in MORE_OF_LIBRISPEECH)),
        rule=ENGLISH,
        splits="all train-* parts are train, dev-clean is dev, test-clean is test; dev_other and test_other",
        read=read_librispeech,
    ),
    "yesno": Published(
        about="60 strings of eight times yes or no in Hebrew, one speaker, 8 kHz",
        licence="free to use, without a licence text",
        page="https://www.openslr.org/1/",
        address=f"{OPENSLR}/1",
        parts=(
            CorpusPart("waves_yesno", 0.1, 4.7, "c3f49e0cca421f96b75b41640749167b52118f232498667ca7a5f9416aef8e73"),
        ),
        rule=ENGLISH,
        splits="as in Kaldi: recordings that begin with NO are train, with YES test; dev is carved out of train",
        read=read_yesno,
        units="word",
        recipe="yesno",
    ),
    "an4": Published(
        about="spelled names, addresses, dates of 84 speakers, 16 kHz",
        licence="CMU's, like BSD",
        page="http://www.speech.cs.cmu.edu/databases/an4/",
        address="http://www.speech.cs.cmu.edu/databases/an4",
        parts=(CorpusPart("an4_sphere", 0.8, 64),),
        rule=ENGLISH,
        splits="train and test as in its file lists; training takes every eighth speaker of train as dev",
        read=read_an4,
        recipe="an4",
        needs=("an4.dic", "an4.ug.lm"),
    ),
    "fsdd": Published(
        about="Free Spoken Digit Dataset: single English digits of six speakers, 8 kHz",
        licence="CC BY-SA 4.0",
        page="https://github.com/Jakobovski/free-spoken-digit-dataset",
        address="https://github.com/Jakobovski/free-spoken-digit-dataset/archive",
        parts=(CorpusPart("recordings", 0.4, 16, archive=f"{_FSDD_COMMIT}.tar.gz"),),
        rule=ENGLISH,
        splits="nicolas is dev, theo is test, the others train; train_official and test_official (repetitions 0 to 4)",
        read=read_fsdd,
        units="word",
        recipe="fsdd",
    ),
    "aishell": Published(
        about="AISHELL-1: read Mandarin of 400 speakers, 16 kHz",
        licence="Apache-2.0",
        page="https://www.openslr.org/33/",
        address=f"{OPENSLR}/33",
        parts=(CorpusPart("data_aishell", 178, 15000, archive="data_aishell.tgz", nested="data_aishell/wav/*.tar.gz"),),
        rule=UNSPACED,
        splits="train, dev and test as published",
        read=read_aishell,
    ),
    "switchboard": _licensed("Switchboard-1, calls of strangers", "LDC97S62", (SWBD1, HUB5), CALLS_AS_DEV),
    "fisher": _licensed("Fisher English, calls of strangers", "LDC2004S13", (FISHER1, FISHER2, HUB5), CALLS_AS_DEV),
    "switchboard-fisher": _licensed(
        "Switchboard-1 and Fisher English", "LDC2004S13", (SWBD1, FISHER1, FISHER2, HUB5), CALLS_AS_DEV
    ),
    "eval2000": _licensed(
        "Hub5'00, the test set of Switchboard and CallHome",
        "LDC2002S09",
        (HUB5,),
        "all is test, by the segments of its PEM; hub5e00.stm and hub5e00.glm are for murmur score",
    ),
    "callhome": _licensed(
        "CallHome American English, calls of relatives", "LDC97S42", (HOME,), "train, devtest and evaltest as published"
    ),
    "own": Published(
        about="your recordings: SPEAKER/NAME.wav or .flac with NAME.txt beside it",
        licence="that of your recordings, which stay where they are",
        page="taken by --from FOLDER only",
        address="",
        parts=(),
        rule=PROSE,
        splits="folders train, dev and test if there are any; else the last tenth of the speakers by name is test, and"
        " every eighth of the others dev",
        read=read_own,
        recipe="own",
        needs=("lexicon.txt", "lm.arpa.gz"),
    ),
}
