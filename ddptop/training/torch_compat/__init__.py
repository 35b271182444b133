"""Every private name of torch that ddptop uses, and nowhere else (tests/architecture/test_torch_names.py).

Checked on torch 2.6, 2.13 and 2.15. Where a later torch lacks one, ddptop says so once and training runs as
under torchrun.
"""
