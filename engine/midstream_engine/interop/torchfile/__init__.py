"""Files that ``torch.save`` wrote, read without torch: nothing in them is executed, storages are mapped, CRCs hold."""
