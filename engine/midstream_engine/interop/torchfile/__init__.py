"""Files that ``torch.save`` wrote, read without torch.

Nothing in them is executed, storages are mapped, CRCs hold.
"""
