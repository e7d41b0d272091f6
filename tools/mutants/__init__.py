"""What tools/run_mutants is made of: bugs planted into a copy of the sources, and whether tests see them."""
