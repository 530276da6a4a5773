"""Config files: value types, schema, how a file becomes what the program needs, and the words of errors."""
