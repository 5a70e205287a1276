"""Fence, start number, lease and status of an attempt, of any trainer."""
