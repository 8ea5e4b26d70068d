"""Numerics that several mechanisms share."""
