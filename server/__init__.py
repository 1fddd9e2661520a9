"""The server: three API flavours over one internal request. A package beside this file is a flavour (or the
page); a module in it that has a `router` is found by its name. `wanted` is what they all ask for, `answer`
what they all get.
"""
