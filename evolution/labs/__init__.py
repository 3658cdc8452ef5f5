"""`python -m evolution labs`: list the labs of `experiments/labs`, grade one, build the tree that students get."""
