"""Step 2, analyse: the tree becomes classes, children and computed values."""
