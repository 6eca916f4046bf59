"""trainer.models.families: one module per family, which maps the keys of config.json onto a Description and names its tensors. No torch.

Every module defines FAMILY. A new family is a new module here, if the contract's Description has everything it needs.
"""
