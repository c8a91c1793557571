"""Commands of the trainer, one module each; `murmur.plugins` names them."""
