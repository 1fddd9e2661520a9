"""The parts of quantizing a file: which format each tensor gets, what rules say, and the encoding of rows."""
