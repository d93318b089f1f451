"""What a user declares, how the file is loaded, and how its code reaches Spark's workers."""
