"""Published corpora: catalogue, download, readers, and the sets written from them."""
