"""Decoding token by token: `states` of it for any device, and steps of them by `triton`."""
