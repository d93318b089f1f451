"""What a run leaves to be read afterwards: the parts that nodes write, merged into one journal."""
