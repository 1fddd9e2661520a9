"""What `satchel quantize` is made of: its options, the bar and tables, the budget and its report."""
