"""From YAML to cells: what a sweep will measure, validated as a whole."""
