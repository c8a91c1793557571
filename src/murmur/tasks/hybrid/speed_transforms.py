"""fMLLR transforms of the training speakers for copies at another speed, from the alignments at speed 1."""

from __future__ import annotations

import logging

from murmur.speech.hmm.hybrid import at_speed
from murmur.speech.hmm.speaker_transforms import FmllrConfig, Transforms, transforms_from_paths
from murmur.speech.hmm.storage import load_transforms, save_transforms
from murmur.tasks.hybrid.hmm import HmmHalf
from murmur.tasks.prepared import refuse_to_make

log = logging.getLogger(__name__)


def speed_transforms(half: HmmHalf, speed: float, config: FmllrConfig) -> Transforms:
    """The transforms of train at one speed, read or made. A speaker at another speed is taken for another speaker.

    The alignment of a copy is that of speed 1, stretched to its frames.

    Raises:
        SettingError: they are missing, and the half refuses to make them.
    """
    stage, train = half.trained[-1], half.material.train
    path = half.cache / f"{stage.name}-{stage.key}-speed-{speed:g}-transforms.npz"
    try:
        return load_transforms(path)
    except (FileNotFoundError, ValueError) as error:
        if half.absent == "refuse":
            refuse_to_make(f"the transforms of train at speed {speed:g} ({error})", half.cache)
        log.info("%s, train at speed %g: estimating the transforms of its speakers", stage.name, speed)
    feats = half.features(train, speed)
    feats = {name: feats_TF for name, feats_TF in feats.items() if name in stage.tids}
    paths = {name: at_speed(stage.tids[name], len(feats_TF)) for name, feats_TF in feats.items()}
    found = transforms_from_paths(stage.pair, feats, paths, train.speakers, config, half.jobs)
    save_transforms(found, path)
    return found
