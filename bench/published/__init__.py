"""The numbers in the papers, and which variant here each of their rows is."""
