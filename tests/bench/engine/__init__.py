"""The engine beside the official code: same weights, same texts, same machine, in one run (`make bench-engine`)."""
