"""The cost model, written once: every number is a float or an array over layouts, and nothing here reads or prints."""
