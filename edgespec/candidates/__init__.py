"""Where candidate tokens come from, one file a generator."""
