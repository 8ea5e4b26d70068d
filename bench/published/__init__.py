"""The numbers in the papers, and what their rows are here."""
