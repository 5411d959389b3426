"""Key/value caches, one file a layout: where the past lives, and how it is forgotten."""
