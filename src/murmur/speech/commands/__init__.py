"""Commands of the recogniser, one module each; `murmur.speech.plugin` names them."""
