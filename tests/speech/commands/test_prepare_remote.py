"""Corpora and frames on an S3 server: prepared, staged and trained on with the bits of local ones; errors are named."""

from pathlib import Path

import lhotse
import numpy as np
import pytest
import soundfile
import torch
from lhotse.shar import SharWriter
from typer.testing import CliRunner

from murmur.cli import app
from murmur.engine.budget import Budget
from murmur.engine.trainer import Trainer
from murmur.speech.corpus import remote
from murmur.speech.corpus.kaldi_dir import read_data_dir, write_table
from murmur.speech.corpus.remote import bytes_of, location, marks_in, publish
from murmur.speech.features import frame_parts
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.features.shards import open_store
from murmur.speech.features.staging import Staging
from murmur.speech.models import Tdnn
from murmur.speech.tasks.frames import FramesTask
from murmur.strategies import KAVG
from murmur.worlds.threads import ThreadWorld
from tests.support.remote_servers import check_credentials, needs_s3, s3_server
from tests.support.speech_files import in_memory, write_cuts
from tests.support.unscaled import Experiment

pytestmark = needs_s3
UTTERANCES, CLASSES = 10, 4
S3 = "s3://bucket"


@pytest.fixture(scope="module")
def server():
    with s3_server() as address:
        yield address


@pytest.fixture(autouse=True)
def _bucket(server, monkeypatch):
    known = {"ENDPOINT_URL": server, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "us-east-1"}
    for name, value in known.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(frame_parts, "UTTERANCES_PER_SHARD", 4)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    if not files.exists("bucket"):
        files.mkdir("bucket")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data directory with relative names of recordings, and a class for each frame."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    names = [f"s{n % 3}-{n:02}" for n in range(UTTERANCES)]
    (root / "wav").mkdir()
    for name in names:
        soundfile.write(root / "wav" / f"{name}.wav", 0.1 * rng.standard_normal(4000).astype(np.float32), 8000)
    write_table(root / "text", dict.fromkeys(names, "A B"))
    write_table(root / "utt2spk", {n: n.partition("-")[0] for n in names})
    write_table(root / "wav.scp", {n: f"wav/{n}.wav" for n in names})
    np.savez(root / "ali.npz", **{n: rng.integers(0, CLASSES, 50) for n in names})
    return root


def upload(folder, place):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            publish(path, location(f"{S3}/{place}") / path.relative_to(folder))


def prepared(*words):
    done = CliRunner().invoke(app, ["prepare", *map(str, words), "--storage", "uint8"], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return location(done.output.split()[-1])


def failed(*words):
    done = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "300"})
    assert done.exit_code != 0
    return done.output


def trained(train, staging):
    torch.manual_seed(0)
    chunks = Chunks(frames=10, left_frames=4, right_frames=4, size=4)
    plain = SpecAugment(time_masks=0, bin_masks=0)
    network = Tdnn(8, ((-1, 0, 1),), dropout=0.0)
    task = FramesTask(train, train, CLASSES, network, chunks, plain, staging=staging)
    return Trainer(Experiment(task, KAVG(K=2), Budget(epochs=1)), ThreadWorld(2)).fit()


def test_frames_are_prepared_on_the_server_and_train_two_learners_with_the_bits_of_local_ones(data, tmp_path):
    upload(data, "e2e")
    here = prepared(data, "--alignments", data / "ali.npz", "--out", tmp_path / "local")
    far = prepared(f"{S3}/e2e", "--alignments", f"{S3}/e2e/ali.npz", "--out", f"{S3}/frames")
    assert str(far).startswith(f"{S3}/frames/frames-")
    local = {path.name: path.read_bytes() for path in here.iterdir() if not path.name.startswith(".")}
    assert {name: bytes_of(far / name) for name in marks_in(far)} == local
    assert len(open_store(here).manifest["shards"]) == 3
    staging = Staging(tmp_path / "staged")
    results = [trained(here, staging), trained(far, staging)]
    weights = [torch.cat([w.flatten() for w in r.model.state_dict().values()]) for r in results]
    assert torch.equal(*weights)
    assert len([f for f in (tmp_path / "staged").iterdir() if f.is_dir()]) == 3


def test_the_same_command_again_makes_what_is_missing_alone(data, tmp_path, monkeypatch):
    upload(data, "again")
    words = (f"{S3}/again", "--alignments", data / "ali.npz", "--cmvn", "none", "--out", f"{S3}/again-frames")
    far = prepared(*words)
    before = {name: bytes_of(far / name) for name in marks_in(far)}
    import s3fs

    files = s3fs.S3FileSystem()
    files.rm(str(far / "00001.json"))
    files.pipe_file(str(far / "00002.feats.npy"), b"half")
    sent = []
    monkeypatch.setattr(
        "murmur.speech.features.shards.publish", lambda path, url: (sent.append(url.name), publish(path, url))
    )
    assert prepared(*words) == far
    assert {name: bytes_of(far / name) for name in marks_in(far)} == before
    assert {name[:5] for name in sent} == {"00001", "00002", "manif"}
    ends = ("feats.npy", "lengths.npy", "names.txt", "scales.npy", "targets.npy", "json")
    assert sent.index("00001.json") == max(sent.index(f"00001.{end}") for end in ends)


def test_manifests_of_recordings_at_urls_are_read_where_they_lie(data, tmp_path):
    upload(data, "lhotse")
    for name in ("cuts", "far"):
        (tmp_path / name).mkdir()
    write_cuts(read_data_dir(data), tmp_path / "cuts" / "cuts.jsonl.gz")
    cuts = lhotse.CutSet.from_file(tmp_path / "cuts" / "cuts.jsonl.gz").to_eager()
    for cut in cuts:
        source = cut.recording.sources[0]
        source.type, source.source = "url", f"{S3}/lhotse/wav/{Path(source.source).name}"
    cuts.to_file(tmp_path / "far" / "cuts.jsonl.gz")
    upload(tmp_path / "far", "lhotse")
    ways = [tmp_path / "cuts" / "cuts.jsonl.gz", tmp_path / "far" / "cuts.jsonl.gz", f"{S3}/lhotse/cuts.jsonl.gz"]
    stores = [
        open_store(prepared(way, "--alignments", data / "ali.npz", "--out", tmp_path / str(n)))
        for n, way in enumerate(ways)
    ]
    assert stores[0].manifest == stores[1].manifest == stores[2].manifest


def test_shar_shards_are_read_from_the_server_and_written_to_it(tmp_path):
    (tmp_path / "shar").mkdir()
    rng = np.random.default_rng(1)
    with SharWriter(tmp_path / "shar", fields={"features": "numpy", "targets": "numpy"}, shard_size=4) as writer:
        for number in range(UTTERANCES):
            feats = rng.standard_normal((50, 4)).astype(np.float32)
            cut = lhotse.MonoCut(f"u{number}", 0, 0.5, 0, features=in_memory(feats))
            writer.write(cut.attach_tensor("targets", rng.integers(0, 5, 50), frame_shift=0.01, temporal_dim=0))
    upload(tmp_path / "shar", "shar")
    here = prepared(tmp_path / "shar", "--cmvn", "none", "--out", tmp_path / "local")
    far = prepared(f"{S3}/shar", "--cmvn", "none", "--out", tmp_path / "far")
    assert open_store(far).manifest == open_store(here).manifest
    assert [shard["utterances"] for shard in open_store(far).manifest["shards"]] == [4, 4, 2]
    done = prepared(f"{S3}/shar", "--cmvn", "none", "--out", f"{S3}/shar-frames")
    assert open_store(done, Staging(tmp_path / "staged")).manifest == open_store(here).manifest


def test_errors_are_named_in_one_line_before_any_work(server, data, tmp_path):
    ali = ("--alignments", data / "ali.npz")
    assert "s3://nowhere: there is no such file, folder or bucket" in failed(
        "prepare", data, *ali, "--out", "s3://nowhere/x"
    )
    assert "s3://nowhere/data has no file 'text'" in failed("prepare", "s3://nowhere/data", *ali, "--out", tmp_path)
    assert "a web server takes no files" in failed("prepare", data, *ali, "--out", "https://localhost/x")
    assert "takes frames with classes" in failed("prepare", data, "--out", f"{S3}/x")
    train = ("train", "frames", "--out", tmp_path / "run", "--set", f"task.train={S3}/x", "--set", f"task.dev={S3}/x")
    assert f"task.train is {S3}/x, of which all targets would be read: give task.classes" in failed(*train)
    assert f"{S3}/x/manifest.json: there is no such file" in failed(*train, "--set", "task.classes=4")
    check_credentials(server, wanted=True)
    try:
        told = failed("prepare", f"{S3}/e2e", *ali, "--out", f"{S3}/x")
    finally:
        check_credentials(server, wanted=False)
    assert "access is refused" in told
    assert "check the credentials and their rights" in told
    assert "\n" not in told.strip()
