"""Chain models as a task: pure minibatches and pieces, shifts, containment, learning from a flat start and a tree."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import Adam
from murmur.engine.stacked import NotStackable, check_stackable
from murmur.engine.task import Checkable, DescribesModel, Divisible, Preparable, ResumableTest
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import IGNORED, Chunks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.grow import TreeConfig, lower_rate_windows
from murmur.speech.models import Tdnn
from murmur.speech.sequence import log_domain
from murmur.speech.tasks.graph_sources import CHAIN_SCALES, Search
from murmur.speech.tasks.hybrid.chain import ChainBatch
from murmur.speech.tasks.hybrid.config import ChainMmi, CrossEntropy, Decoding, FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.tasks.pronouncing import TextVocabulary
from murmur.speech.tasks.recogniser import PortableRecogniser, Recognises
from murmur.strategies import ADPSGD, BMUF, KAVG, SyncSGD
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.plateaus import make_set
from tests.support.tasks import fit
from tests.support.unscaled import Experiment

SMALL = EmConfig(gaussians=40, passes=6, grow_passes=4, align_passes=(2, 3, 4, 5, 6))
TREE = TreeConfig(leaves=20, min_frames=5.0, min_gain=1.0)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> HybridTask:
    root = make_set(tmp_path_factory.mktemp("set"), {"train": 24, "dev": 6, "test": 4})
    return HybridTask(
        corpus=root,
        hmm=HmmStages(monophone=SMALL, triphone=None),
        network=Tdnn(24, ((-1, 0, 1), (-3, 0, 3), (0,)), dropout=0.0, stack=3),
        criterion=ChainMmi(),
        chunks=Chunks(size=4),
        augment=SpecAugment(time_frames=3, time_masks=1, bin_masks=0),
        decoding=Decoding(network=Search(scales=(0.7, 1.0)), scored="none"),
        cache=root / "cache",
    )


@pytest.fixture(scope="module")
def with_tree(task: HybridTask) -> HybridTask:
    return replace(task, criterion=ChainMmi(tree=TREE))


def same(one: ChainBatch, other: ChainBatch) -> bool:
    mine, theirs = vars(one.numerators), vars(other.numerators)
    return all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("feats", "lengths", "targets")
    ) and all(torch.equal(mine[name], theirs[name]) for name in mine)


def fresh(task: HybridTask) -> torch.nn.Module:
    torch.manual_seed(0)
    return task.model()


def trained(task: HybridTask, epochs: int) -> torch.nn.Module:
    model = fresh(task)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for n in range(epochs * task.per_epoch):
        loss = task.loss(model, task.minibatch(n))
        optimizer.zero_grad()
        (loss.total / loss.samples).backward()
        optimizer.step()
    return model


def test_the_task_can_be_checked_cut_estimated_resumed_and_recognises(task: HybridTask) -> None:
    for protocol in (Checkable, DescribesModel, Divisible, Preparable, ResumableTest, Recognises):
        assert isinstance(task, protocol)
    with pytest.raises(NotStackable, match="ChainMmi"):
        check_stackable(Experiment(task, SyncSGD()))


@pytest.mark.parametrize("kind", ["task", "with_tree"])
def test_a_minibatch_is_a_pure_function_of_its_number(request: pytest.FixtureRequest, kind: str) -> None:
    task: HybridTask = request.getfixturevalue(kind)
    again = pickle.loads(pickle.dumps(task))
    assert len(pickle.dumps(task)) < 5000
    for n in (1, 0, task.per_epoch):
        assert same(task.minibatch(n), again.minibatch(n))
    assert not same(task.minibatch(0), task.minibatch(1))
    assert same(task.minibatch(0), task.piece(0, 0, 1))
    assert sum(task.minibatch(n).frames for n in range(task.per_epoch)) == task.samples_per_epoch


def test_pieces_hold_each_utterance_once_and_their_losses_add_up(with_tree: HybridTask) -> None:
    quiet = replace(with_tree, augment=SpecAugment(time_masks=0, bin_masks=0))
    model = fresh(quiet)
    whole = quiet.loss(model, quiet.minibatch(0))
    for of in (2, 4, 8):
        pieces = [piece for number in range(of) if (piece := quiet.piece(0, number, of)) is not None]
        assert len(pieces) == min(of, quiet.most_pieces)
        losses = [quiet.loss(model, piece) for piece in pieces]
        assert sum(loss.samples for loss in losses) == whole.samples
        assert sum(float(loss.total) for loss in losses) == pytest.approx(float(whole.total), rel=1e-4)


def test_epochs_take_other_frames_in_turn(with_tree: HybridTask) -> None:
    """Features of epoch e are shifted by shifts[e % 3] frames, and targets are those of the frames then taken."""
    quiet = replace(with_tree, augment=SpecAugment(time_masks=0, bin_masks=0))
    train, stage = quiet.learning.data.train, quiet.hmms.trained[-1]
    for epoch, shift in enumerate((-1, 0, 1, -1)):
        batch = quiet.minibatch(epoch * quiet.per_epoch)
        for row, length, targets_U in zip(batch.feats, batch.lengths.tolist(), batch.targets, strict=True):
            frames = np.clip(np.arange(length) + shift, 0, length - 1)
            mine = [
                i for i, x in enumerate(train.feats) if len(x) == length and np.array_equal(x[frames], row[:length])
            ]
            assert len(mine) == 1
            tids = stage.tids[train.names[mine[0]]]
            windows = lower_rate_windows(stage.model.transitions, tids, length, 3, shift)
            wanted = quiet.learning.data.states.tree.pdfs_of(windows).tolist()
            assert targets_U[targets_U != IGNORED].tolist() == targets_U[: len(wanted)].tolist() == wanted


@pytest.mark.parametrize("kind", ["task", "with_tree"])
def test_numerators_are_part_of_the_denominator(request: pytest.FixtureRequest, kind: str) -> None:
    task: HybridTask = request.getfixturevalue(kind)
    assert len(task.learning.data.train.names) == 24
    model = fresh(task)
    for seed in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)))
            outputs_NUC = model(task.minibatch(seed).feats, task.minibatch(seed).lengths)
            assert float(outputs_NUC.std()) > 1
            exact = replace(task, criterion=replace(task.criterion, cross_entropy=0.0))
            assert float(exact.loss(model, task.minibatch(seed)).total) > 0


def test_the_gradient_of_the_network_is_that_of_the_criterion(with_tree: HybridTask) -> None:
    model, batch = fresh(with_tree), with_tree.minibatch(0)
    with_tree.loss(model, batch).total.backward()
    weight = model.output.bias
    step, (row,) = 1e-2, torch.argmax(weight.grad.abs(), keepdim=True).tolist()
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight[row] += sign * step
            values.append(float(with_tree.loss(model, batch).total))
            weight[row] -= sign * step
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(weight.grad[row]), rel=0.03)


def test_a_flat_start_learns_the_words_without_any_alignment(task: HybridTask, tmp_path: Path) -> None:
    flat = replace(task, cache=tmp_path / "cache")
    assert [made.what.split(" of ")[0] for made in flat.unprepared()] == ["features"]
    assert any("monophone" in made.what for made in replace(flat, criterion=ChainMmi(tree=TREE)).unprepared())
    before = flat.evaluate(fresh(flat))
    model = trained(flat, 10)
    after = flat.evaluate(model)
    assert set(after) == {"loss", "objective"}
    assert before["objective"] < 2 * after["objective"] < 0
    score = flat.test(model)
    assert score.figures["network dev wer"] <= 12
    assert score.figures["network test wer"] <= 12
    assert not list(flat.cache.glob("monophone*"))  # no Gaussian system was made


def test_utterances_that_cannot_be_used_are_named_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_set(tmp_path, {"train": 24, "dev": 6, "test": 4})
    texts = dict(line.split(" ", 1) for line in (root / "data/train/text").read_text().splitlines())
    names = list(texts)
    for name, word in zip(names[:3], ("ZEBRA", "ZEBRA", "QUAGGA"), strict=True):
        texts[name] += f" {word}"
    texts[names[5]] = " ".join([texts[names[5]]] * 40)  # too long for its audio
    (root / "data/train/text").write_text("".join(f"{name} {text}\n" for name, text in texts.items()))
    stages, network = HmmStages(monophone=SMALL, triphone=None), Tdnn(8, ((0,),), dropout=0.0, stack=3)
    task = HybridTask(corpus=root, hmm=stages, network=network, criterion=ChainMmi(), cache=root / "cache")
    data = task.learning.data
    assert set(names) - set(data.train.names) == {*names[:3], names[5]}
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert said[0].startswith(f"train: 3 utterances are left out: {', '.join(names[:3])}: words that the lexicon lacks")
    assert said[0].endswith(": QUAGGA ZEBRA")
    assert said[1].startswith(f"train: 1 utterance is left out: {names[5]}: too few frames")
    assert len(said) == 2


def test_a_tree_from_alignments_has_targets_and_learns(with_tree: HybridTask) -> None:
    assert with_tree.learning.data.states.tree.num_pdfs > 10  # five phones of two states
    model = trained(with_tree, 10)
    after = with_tree.evaluate(model)
    assert after["loss"] == pytest.approx(0.1 * after["cross-entropy"] - after["objective"])
    assert after["frame accuracy"] > 0.8
    assert with_tree.test(model).figures["network dev wer"] <= 12


def test_aligned_numerators_follow_the_alignment_within_the_tolerance(with_tree: HybridTask) -> None:
    """Scores that allow only the aligned pdfs put all mass on them; a tolerance adds paths, and a transcript more."""
    batches, totals = {}, {}
    for tolerance in (0, 2, None):
        changed = replace(with_tree, criterion=ChainMmi(tolerance_frames=tolerance, tree=TREE, shifts=(0,)))
        batch = batches[tolerance] = changed.minibatch(0)
        frames = (batch.lengths + 2) // 3
        totals[tolerance] = log_domain.log_total(torch.zeros(*batch.targets.shape, 18), frames, batch.numerators)
    assert (totals[0] < totals[2]).all()
    targets = batches[0].targets
    scores = torch.full((*targets.shape, 18), -20.0).scatter_(2, targets.clamp(min=0)[..., None], 0.0)
    for batch in batches.values():
        assert torch.equal(batch.targets, targets)
        _, gamma = log_domain.occupancies(scores, (batch.lengths + 2) // 3, batch.numerators)
        assert float(gamma.gather(2, targets.clamp(min=0)[..., None])[..., 0][targets != IGNORED].min()) > 0.99


def test_aligned_numerators_are_part_of_the_denominator_and_teach_the_words(with_tree: HybridTask) -> None:
    aligned = replace(with_tree, criterion=ChainMmi(tolerance_frames=1, cross_entropy=0.0, tree=TREE))
    assert len(aligned.learning.data.train.names) == 24
    model = fresh(aligned)
    loss = aligned.loss(model, aligned.minibatch(0))
    assert float(loss.total) > 0
    assert aligned.test(trained(aligned, 10)).figures["network dev wer"] <= 12


def test_the_recogniser_is_read_as_it_was_saved(task: HybridTask, tmp_path: Path) -> None:
    made = task.recogniser()
    made.save(tmp_path / "recogniser")
    found = PortableRecogniser.open(tmp_path / "recogniser")
    assert found.acoustic.frames_per_second == pytest.approx(100 / 3)
    assert found.graphs.outputs_key == made.graphs.outputs_key
    lang = found.graphs.states.lang
    assert lang.topology == "chain"
    model, (name, *_) = fresh(task), task.learning.data.dev.names
    feats_TF = task.learning.data.dev.feats[0]
    scores = found.acoustic.scores(model, feats_TF)
    assert name.startswith("dev")
    assert scores.shape == (-(-len(feats_TF) // 3), 10)
    assert np.array_equal(scores, made.acoustic.scores(model, feats_TF))


def test_graphs_count_transitions_as_training_does(task: HybridTask) -> None:
    """Each frame of a phone costs ln 2, whichever of its states it has, and tuning tries scales around 1."""
    sources = task.recogniser().graphs
    assert sources.free_scales == CHAIN_SCALES
    lang, grammar = sources.words("loop")
    decoder, tree = Decoder(sources.build(lang, grammar), DecodeOptions(acoustic_scale=1.0)), sources.states.tree
    costs = []
    for extra in (0, 1, 5):
        states = [("B", 0), ("O", 0), ("B", 0), *[("B", 1)] * extra]
        rows = np.full((len(states), tree.num_pdfs), -50.0, np.float32)
        for row, (phone, state) in zip(rows, states, strict=True):
            row[tree.pdf((lang.phones.index(phone),), state)] = 0.0
        found = decoder.decode(rows)
        assert found.words == ("BOB",)
        costs.append(found.cost)
    assert np.diff(costs) == pytest.approx([math.log(2), 4 * math.log(2)], abs=1e-4)


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), BMUF(2), ADPSGD()], ids=lambda s: type(s).__name__)
def test_strategies_learn_on_a_virtual_cluster(task: HybridTask, strategy: object) -> None:
    weights = fit(Experiment(task, strategy, Budget(minibatches=12), Adam(lr=1e-2)), VirtualWorld(2))
    model = fresh(task)
    before = task.evaluate(model)["loss"]
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    assert 0 < task.evaluate(model)["loss"] < 0.85 * before


def test_decoding_uses_the_vocabulary_of_a_text(task: HybridTask, tmp_path: Path) -> None:
    lines = [line.split() for line in (task.corpus / "lexicon.txt").read_text().splitlines()]
    spoken = [(word, [phone.lower() for phone in phones]) for word, *phones in lines]
    root = make_set(tmp_path / "set", {"train": 4, "dev": 2, "test": 2})
    (root / "lexicon.txt").write_text("".join(f"{word} {' '.join(phones)}\n" for word, phones in spoken))
    text = tmp_path / "text.txt"
    text.write_text("BOB NAB ANNA\n" * 20)
    vocabulary = TextVocabulary(text, min_count=2, guess="graphemes")
    search = Search("tg", scales=(0.7, 1.0))
    decoding = Decoding(network=search, scored="none")
    larger = replace(task, corpus=root, vocabulary=vocabulary, decoding=decoding, cache=tmp_path / "cache")
    larger.prepare()
    assert list((tmp_path / "cache").glob("lm-*"))  # made before training
    lang, _ = larger.recogniser().graphs.words("tg")
    assert "NAB" in [each.word for each in lang.prons]
    with pytest.raises(ValueError, match=r"there is no grammar .tg. for this set"):
        task.recogniser().graphs.words("tg")


def test_silences_between_words_have_their_share_in_the_alignments(task: HybridTask, with_tree: HybridTask) -> None:
    share = with_tree.hmms.trained[-1].silence_share(with_tree.material.train.texts)
    assert with_tree.recogniser().graphs.silence_probability == share
    assert task.recogniser().graphs.silence_probability == 0.5 != share
    for chosen in (task, with_tree):
        decoding = replace(chosen.decoding, silence_probability=0.3)
        given = replace(chosen, decoding=decoding)
        assert given.recogniser().graphs.silence_probability == 0.3


def realigned(folder: Path) -> Path:
    (folder / "earlier.safetensors").write_bytes(b"")
    return folder / "earlier"


def test_settings_that_do_not_fit_are_refused(task: HybridTask, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="as they are"):
        replace(task, front=FrontEnd(speeds=(0.9, 1.0))).check()
    with pytest.raises(SettingError, match="are scales of posteriors"):
        replace(task, decoding=Decoding()).check()
    with pytest.raises(SettingError, match="realigned_by"):
        replace(task, realigned_by=realigned(tmp_path)).check()
    with pytest.raises(SettingError, match=r"chunks\.parts"):
        replace(task, chunks=replace(task.chunks, parts=3)).check()
    with pytest.raises(SettingError, match=r"task\.criterion\.shifts"):
        replace(task, criterion=ChainMmi(shifts=(0, task.network.stack))).check()
    with pytest.raises(SettingError, match=r"task\.network\.stack: 6 with a tree"):
        replace(task, criterion=ChainMmi(tree=TREE), network=replace(task.network, stack=6)).check()
    replace(task, network=replace(task.network, stack=6)).check()
    with pytest.raises(ValueError, match="a tolerance of -1"):
        ChainMmi(tolerance_frames=-1)
    for wrong in ({"leak": 0.0}, {"cross_entropy": -1.0}, {"draws": 0}, {"cross_entropy": math.nan}):
        with pytest.raises(ValueError, match="must be positive"):
            ChainMmi(**wrong)
    with pytest.raises(ValueError, match="a flat start has no alignments"):
        ChainMmi(tolerance_frames=1)
    with pytest.raises(ValueError, match="no shift"):
        ChainMmi(shifts=())
    with pytest.raises(ValueError, match="every frame has a target"):
        replace(task, criterion=CrossEntropy())
