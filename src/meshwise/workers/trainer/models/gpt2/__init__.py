"""GPT-2 (Radford et al. 2019) and GPT-3 (arXiv:2005.14165) with dense attention: registry entry, model and sharding."""
