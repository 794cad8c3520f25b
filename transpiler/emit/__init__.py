"""Step 6, emit: the text of the file, with imports computed from use."""
