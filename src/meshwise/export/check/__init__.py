"""check: the facts of a launch file -> what contradicts, whether it fits, how fast it is, and the best layout in the file's own words."""
