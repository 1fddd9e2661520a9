"""The parts of `satchel quantize`: options, progress and tables, the size budget and its report."""
