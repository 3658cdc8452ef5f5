"""What `python -m evolution faults` does: fail every process of an engine in every way, and see what becomes of it."""
