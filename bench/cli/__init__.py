"""The commands: arguments, help pages and printed lines."""
