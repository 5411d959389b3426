"""Speech to text: from a file of sound to segments with times."""
