"""The commands and recipes of the recogniser."""

from __future__ import annotations

from murmur.plugins import GOES_ON, Command, Plugin

PLUGIN = Plugin(
    "Speech recognition",
    {
        "demo": Command(
            "murmur.speech.commands.demo",
            "Make a digits corpus, train one learner and two, report their word error rates.",
            GOES_ON,
        ),
        "prepare": Command(
            "murmur.speech.commands.prepare",
            "Prepare a published corpus, the features of data, or the data of an experiment.",
            GOES_ON,
            many_items=True,
        ),
        "align": Command(
            "murmur.speech.commands.align",
            "Train the Gaussian systems of a hybrid experiment; write phone, word and state alignments.",
            GOES_ON,
            many_items=True,
        ),
        "decode": Command(
            "murmur.speech.commands.decode",
            "Recognise speech with a trained model: hypotheses, word times, speed.",
            "decoded utterances are kept; run the same command to decode the rest",
            many_items=True,
        ),
        "transcribe": Command(
            "murmur.speech.commands.transcribe",
            "Transcribe recordings: word times and confidences; text, JSON, CTM, subtitles.",
            "files already written are complete; the same command writes all files again, with the same contents",
        ),
        "export": Command(
            "murmur.speech.commands.export",
            "Export a model to other runtimes (ONNX) with its normalisation, graph and word list.",
            many_items=True,
        ),
        "score": Command(
            "murmur.speech.commands.score",
            "Compute word or character error rates with intervals, by speaker; compare two systems.",
            many_items=True,
        ),
        "lexicon": Command(
            "murmur.speech.commands.lexicon",
            "Make a lexicon for the words of a text: looked up, or guessed where missing.",
            many_items=True,
        ),
        "lm": Command(
            "murmur.speech.commands.lm",
            "Train and prune language models; measure perplexity.",
            many_items=True,
        ),
    },
    recipes="murmur.speech.recipes",
    install="pip install 'murmur-asr[speech,synth,viz]'",
)
