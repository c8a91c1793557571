"""Tasks that need no data: the toy problem, and generated frames."""
