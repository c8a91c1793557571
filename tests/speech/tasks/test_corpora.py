"""The sets of the recipes: sizes, speakers that stay apart, files that exist."""

from pathlib import Path

import pytest

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.digits import Digits, make_digits
from murmur.speech.corpus.kaldi_dir import write_table
from murmur.speech.lexicon.lexicon import read_lexicon
from murmur.speech.tasks import corpora

CORPORA = Path(__file__).resolve().parents[3] / "../shared/corpora"
recorded = pytest.mark.skipif(not CORPORA.is_dir(), reason="the recorded corpora are not beside this checkout")


@recorded
@pytest.mark.parametrize(
    ("name", "folder", "sizes"),
    [
        ("yesno", "yesno", (28, 3, 29)),
        ("fsdd_official", "fsdd", (2580, 120, 300)),
        ("fsdd_unseen", "fsdd", (2000, 500, 500)),
        ("librispeech", "librispeech_mini_s", (436, 76, 81)),
        ("an4", "an4_mfcc", (831, 117, 130)),
    ],
)
def test_recorded_sets(name, folder, sizes):
    found = corpora.LOADERS[name](CORPORA / folder)
    parts = (found.train, found.dev, found.test)
    assert tuple(len(part) for part in parts) == sizes
    names = [set(part.texts) for part in parts]
    assert not names[0] & names[1] and not names[2] & (names[0] | names[1])  # noqa: PT018
    if name not in ("yesno", "fsdd_official"):
        speakers = [set(part.speakers.values()) for part in parts]
        assert not speakers[0] & speakers[1] and not speakers[2] & (speakers[0] | speakers[1])  # noqa: PT018
    words = {entry[0] for entry in read_lexicon(found.lexicon)}
    missing = {w for u in found.train.utterances for w in u.words} - words
    assert name == "librispeech" or not missing
    assert all(path.is_file() for path in found.language_models.values())


@recorded
def test_all_speakers_of_an4_are_trained_on_and_test_stays_apart():
    part, whole = (corpora.LOADERS[name](CORPORA / "an4_mfcc") for name in ("an4", "an4_all"))
    assert (len(whole.train), len(set(whole.train.speakers.values()))) == (948, 74)
    assert set(whole.train.texts) == set(part.train.texts) | set(part.dev.texts)
    assert whole.test.texts == part.test.texts
    assert not set(whole.train.speakers.values()) & set(whole.test.speakers.values())


@recorded
def test_each_fold_of_fsdd_holds_out_one_speaker_and_never_the_unseen_one():
    root = CORPORA / "fsdd"
    unseen = corpora.LOADERS["fsdd_unseen"](root)
    whole = corpora.LOADERS["fsdd_all"](root)
    assert set(whole.train.texts) == set(unseen.train.texts) | set(unseen.dev.texts)
    assert whole.test.texts == unseen.test.texts
    held_out = []
    for number in range(1, corpora.FOLDS + 1):
        fold = corpora.LOADERS[f"fsdd_fold_{number}"](root)
        held_out += set(fold.dev.speakers.values())
        assert fold.dev == fold.test
        assert not set(fold.train.texts) & set(fold.dev.texts)
        assert set(fold.train.texts) | set(fold.dev.texts) == set(whole.train.texts)
        assert not set(fold.train.speakers.values()) & {*fold.dev.speakers.values(), *unseen.test.speakers.values()}
    assert sorted(held_out) == sorted(set(whole.train.speakers.values()))


def test_digits(tmp_path):
    pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")
    found = corpora.LOADERS["folder"](make_digits(tmp_path, Digits(train=3, dev=2, test=2)))
    assert (len(found.train), len(found.dev), len(found.test)) == (3, 2, 2)
    assert {w for part in (found.train, found.dev, found.test) for u in part.utterances for w in u.words} <= {
        entry[0] for entry in read_lexicon(found.lexicon)
    }


def test_a_folder_without_lexicon_or_splits_is_named(tmp_path):
    with pytest.raises(CorpusError, match="no file 'text'"):
        corpora.LOADERS["folder"](tmp_path)


def test_utterances_that_are_left_out_are_told(tmp_path, caplog):
    parts = {"train": [f"s{n // 25}-{n % 25:02}" for n in range(200)], "test": ["s9-00"]}
    for part, names in parts.items():
        write_table(tmp_path / "data" / part / "text", {name: "YES" for name in names if name != "s0-07"})
        write_table(tmp_path / "data" / part / "utt2spk", {name: name[:2] for name in names})
        write_table(tmp_path / "data" / part / "wav.scp", dict.fromkeys(names, __file__))
    (tmp_path / "lexicon.txt").write_text("YES Y\n")
    found = corpora.LOADERS["folder"](tmp_path)
    assert len(found.train) + len(found.dev) == 199
    (told,) = caplog.messages
    assert told.startswith("data/train: 1 of 200 utterances is left out: s0-07")
    assert told.endswith("it has no transcript")
