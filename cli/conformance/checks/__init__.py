"""The checks. Each public function takes a Target and is one check; its docstring says what the check
requires.
"""
