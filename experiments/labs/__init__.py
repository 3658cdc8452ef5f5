"""Eight labs about the three process models: each folder holds a handout, a skeleton to fill in, and its tests."""
