"""What stands in the place of a trace's placeholders, one file a cache layout."""
