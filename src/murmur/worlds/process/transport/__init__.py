"""Messages and vectors between processes: wire format, connections, mail, gloo and NCCL groups."""
