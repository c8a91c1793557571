"""Stand-in that lets SpeechBrain be imported where torchaudio is not installed; it loads no audio."""

__version__ = "2.9.0"
