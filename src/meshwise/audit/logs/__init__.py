"""What other programs print, read as runs: one file per format, each a pure function of a stream of lines."""
