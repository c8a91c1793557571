"""Messages and vectors between processes: wire format, connections, mail, groups of gloo and NCCL."""
