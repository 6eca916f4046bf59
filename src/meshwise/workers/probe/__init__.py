"""The probe: a program that times what a machine can do. It needs torch and the standard library, nothing else of meshwise."""
