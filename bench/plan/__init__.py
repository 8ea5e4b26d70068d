"""From YAML files to cells: read, combine and check the configuration of a whole sweep."""
