"""`--device sim`: the executor's place taken by a clock. Everything else of the engine runs as it is."""
