"""The language model's task: texts of a corpus, minibatches, figures, files beside the weights."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from murmur.core.errors import SettingError
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import Adam
from murmur.engine.task import Checkable, DescribesModel, Divisible
from murmur.engine.trainer import Trainer
from murmur.run.configuration import resolved
from murmur.run.saved_model import InitialWeights, prepare
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.language_model.word_lstm import WordLstm
from murmur.speech.tasks.language_model import LanguageModelTask, PortableLanguageModel
from murmur.strategies import ADPSGD, KAVG
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.unscaled import Experiment

ROSE = "A ROSE IS A FLOWER AND THE SEA IS BLUE"


def corpus(root: Path, **parts: list[str]) -> Path:
    """A corpus folder with transcripts of some parts."""
    for part, lines in parts.items():
        folder = root / "data" / part
        folder.mkdir(parents=True)
        (folder / "text").write_text("".join(f"{part}{n} {line}\n" for n, line in enumerate(lines)))
    return root


def task_of(root: Path, lines: list[str], **settings: object) -> LanguageModelTask:
    """A small task on a file."""
    file = root / "text.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    small = LanguageModelTask(text=file, min_count=1, minibatch_size=4, network=WordLstm(12, 16, 1, 0.0))
    return replace(small, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [KAVG(K=2), ADPSGD()])
def test_a_repeated_sentence_is_learnt(tmp_path: Path, strategy: KAVG | ADPSGD) -> None:
    task = task_of(tmp_path, [ROSE] * 80, held_out_every=20)
    experiment = Experiment(task, strategy, Budget(minibatches=160), Adam(lr=2e-2), averaged_checkpoints=0)
    model = Trainer(experiment, VirtualWorld(2)).fit().model
    figures, score = task.evaluate(model), task.test(model)
    assert 1.0 <= figures["perplexity"] < 1.02
    assert 0.0 <= figures["loss"] == -figures["logprob"] < 0.02
    assert score.figures["perplexity"] == figures["perplexity"]
    assert score.lines[0].startswith("perplexity 1.0")


def test_a_fresh_model_knows_no_word_from_another(tmp_path: Path) -> None:
    task = task_of(tmp_path, [ROSE] * 60)
    torch.manual_seed(0)
    assert task.evaluate(task.model())["perplexity"] == pytest.approx(len(task.data.words), rel=0.05)


def test_texts_of_a_corpus(tmp_path: Path) -> None:
    root = corpus(tmp_path, train=["A B"] * 3, dev=["B B C"], test=["A"])
    data = LanguageModelTask(corpus=root, min_count=1).data
    assert (len(data.train), len(data.dev), len(data.test)) == (3, 1, 1)
    assert data.words.words == ("</s>", "<unk>", "A", "B")
    assert data.dev[0].tolist() == [3, 3, 1]
    (root / "lm_text").mkdir()
    (root / "lm_text" / "prose.txt").write_text("C D\nC C\n")
    data = LanguageModelTask(corpus=root, min_count=2).data
    assert (len(data.train), data.words.words[2:]) == (2, ("C",))
    named = LanguageModelTask(corpus=root, text=root / "data/test", test_text=root / "lm_text", min_count=1).data
    assert (len(named.train), len(named.dev), len(named.test)) == (1, 1, 2)


def test_without_a_held_out_text_sentences_are_set_apart(tmp_path: Path) -> None:
    lines = [f"W{n}" for n in range(10)]
    data = task_of(tmp_path, lines, held_out_every=4).data
    assert (len(data.train), len(data.dev)) == (8, 2)
    assert not {"W3", "W7"} & set(data.words.words)
    assert data.dev.numbers.tolist() == [1, 1]
    with pytest.raises(SettingError, match="10 sentences, too few to set every 11-th one apart"):
        _ = task_of(tmp_path, lines, held_out_every=11).data


def test_an_epoch_holds_every_sentence_once_whole_or_in_pieces(tmp_path: Path) -> None:
    lines = [" ".join(["A"] * (n % 7)) + f" W{n}" for n in range(30)]
    task = task_of(tmp_path, lines, held_out_every=30)
    wanted = sorted(task.data.train.numbers.tolist())
    for pieces in (1, 2, 3):
        batches = [task.piece(n, k, pieces) for n in range(task.per_epoch) for k in range(pieces)]
        there = [batch for batch in batches if batch is not None]
        seen = torch.cat([batch.targets[batch.targets > 0] for batch in there])
        assert sorted(seen.tolist()) == wanted
        assert sum(batch.tokens for batch in there) == task.samples_per_epoch == len(wanted) + 29
    one, whole = task.piece(3, 0, 1), task.minibatch(3)
    assert one is not None
    assert torch.equal(one.inputs, whole.inputs)
    assert not torch.equal(task.minibatch(task.per_epoch).inputs, task.minibatch(0).inputs)


def test_the_loss_counts_words_and_ends(tmp_path: Path) -> None:
    task = task_of(tmp_path, ["A B", "A", "B A B A", "B"] * 20)
    model = task.model()
    batch = task.minibatch(0)
    loss = task.loss(model, batch)
    assert loss.samples == batch.tokens == int((batch.targets >= 0).sum())
    assert float(loss.total.detach()) == pytest.approx(-float(model.log_probs(batch).sum().detach()))


def test_optional_protocols(tmp_path: Path) -> None:
    task = task_of(tmp_path, ["A"] * 2000)
    for protocol in (Checkable, Divisible, DescribesModel):
        assert isinstance(task, protocol)
    _ = task.data
    assert len(pickle.dumps(task)) < 2000
    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "there is no text"),
        ({"corpus": Path("nowhere")}, "there is no folder nowhere"),
        ({"text": Path("nowhere.txt")}, "there is no file nowhere.txt"),
    ],
)
def test_missing_texts_are_found_by_the_check(settings: dict[str, Path], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        LanguageModelTask(**settings).check()  # type: ignore[arg-type]


def test_a_corpus_without_text_and_a_wrong_held_out_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has neither lm_text nor data/train"):
        LanguageModelTask(corpus=tmp_path).check()
    root = corpus(tmp_path, train=["A"])
    with pytest.raises(SettingError, match="there is no file"):
        LanguageModelTask(corpus=root, dev_text=root / "dev.txt").check()


@pytest.mark.parametrize("wrong", [{"minibatch_size": 0}, {"most_words": 0}, {"min_count": 0}, {"held_out_every": 1}])
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LanguageModelTask(**wrong)  # type: ignore[arg-type]


def test_the_description_is_plain_and_checked(tmp_path: Path) -> None:
    task = task_of(tmp_path, ["ÉTÉ B"] * 50, network=WordLstm(4, 8, 2, 0.1, tied=False))
    out = tmp_path / "description"
    task.save_description(tmp_path)
    assert (out / "words.txt").read_text(encoding="utf-8") == "</s>\n<unk>\nB\nÉTÉ\n"
    opened = PortableLanguageModel.open(out)
    assert (opened.words, opened.network) == (task.data.words, task.network)
    assert opened.weights == sum(p.numel() for p in task.model().parameters())
    assert [p.shape for p in opened.build().parameters()] == [p.shape for p in task.model().parameters()]
    values = json.loads((out / "language_model.json").read_text())
    (out / "language_model.json").write_text(json.dumps({**values, "network": {"hidden": "many"}}))
    with pytest.raises(CorpusError, match=r"language_model\.json is damaged"):
        PortableLanguageModel.open(out)
    for wrong in ({"words": 3}, {"network": {**values["network"], "hidden": 2.5}}):
        (out / "language_model.json").write_text(json.dumps({**values, **wrong}))
        with pytest.raises(CorpusError, match=r"language_model\.json is damaged"):
            PortableLanguageModel.open(out)
    (out / "language_model.json").write_text(json.dumps(values))
    (out / "words.txt").write_text("</s>\n<unk>\nB\nC\n")
    with pytest.raises(SettingError, match=r"words\.txt is not what was written"):
        PortableLanguageModel.open(out)
    (out / "words.txt").unlink()
    with pytest.raises(SettingError, match=r"words\.txt is missing"):
        PortableLanguageModel.open(out)


@pytest.mark.parametrize("recipe", ["lm", "librispeech_lm"])
def test_recipes(recipe: str) -> None:
    assert isinstance(resolved(recipe).task, LanguageModelTask)


def test_a_run_is_not_resumed_on_another_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A word with another number would take the embedding of another word."""
    out, lines = tmp_path / "run", ["ALPHA BETA GAMMA"] * 60
    whole = Experiment(task_of(tmp_path, lines), KAVG(K=2), Budget(minibatches=20), Adam(), evaluate_every_epochs=0.5)
    trained = Trainer(whole, VirtualWorld(1), out).fit()
    assert Trainer(whole, VirtualWorld(1), out, resume=True).fit().figures == trained.figures
    renamed = replace(whole, task=task_of(tmp_path, [line.replace("ALPHA", "ZETA") for line in lines]))
    assert renamed.digest() == whole.digest()
    with pytest.raises(ValueError, match=r"stand for other classes .* restore the data, or choose another --out"):
        Trainer(renamed, VirtualWorld(1), out, resume=True).fit()
    assert not caplog.text.count("other classes")
    prepare(replace(renamed, initial=InitialWeights(out / "model", "")))
    assert "model stand for other classes than those of this task" in caplog.text


def test_held_out_text_in_another_writing_is_noticed_before_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = corpus(tmp_path / "set", train=["A B"], dev=["A ROSE IS A ROSE"] * 2, test=["THE SEA IS RED"] * 3)
    prose = [line.lower() + "." for line in ["a rose is a rose", "the sea is blue"]] * 3
    task = task_of(tmp_path, prose, corpus=root)
    with pytest.raises(SettingError, match="all 10 words of the held-out text are unknown: does it differ"):
        task.prepare()
    replace(task, writing="english").prepare()
    assert "25 % of the words of the text of the final figure are unknown" in caplog.text
    with pytest.raises(SettingError, match=r"there is no folder .*typo"):
        replace(task, corpus=tmp_path / "typo").check()
